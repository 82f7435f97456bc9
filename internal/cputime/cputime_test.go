package cputime

import "testing"

func TestParse(t *testing.T) {
	const text = "cpu  100 20 300 4000 50 6 7 8 90 1\ncpu0 1 2 3 4 5 6 7 8 9 0\n"
	total, idle, err := parse([]byte(text))
	if err != nil || total != 4491 || idle != 4050 {
		t.Errorf("total %d, idle %d, %v; want 4491 and 4050", total, idle, err)
	}
	for _, bad := range []string{"", "cpu", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8", "cpu a b c d e f g h"} {
		if _, _, err := parse([]byte(bad)); err == nil {
			t.Errorf("%q has times", bad)
		}
	}
}
