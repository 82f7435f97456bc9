package cli

import "testing"

func TestShareOf(t *testing.T) {
	for text, want := range map[string]int64{
		"1073741824\n": 1073741824 / 100 * memoryShare, "max\n": 0, "9223372036854771712\n": 0, "": 0, "-1": 0, "0": 0,
	} {
		if got, ok := shareOf(text); got != want || ok != (want > 0) {
			t.Errorf("of %q: %d, %v; want %d", text, got, ok, want)
		}
	}
}
