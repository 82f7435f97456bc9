package proxy

import (
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const text = "cpu  100 20 300 4000 50 6 7 8 90 1\ncpu0 1 2 3 4 5 6 7 8 9 0\n"
	total, idle, err := parseStat([]byte(text))
	if err != nil || total != 4491 || idle != 4050 {
		t.Errorf("total %d, idle %d, %v; want 4491 and 4050", total, idle, err)
	}
	for _, bad := range []string{"", "cpu", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8", "cpu a b c d e f g h"} {
		if _, _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q has times", bad)
		}
	}
}

// The shares of a host and of this process are those of the time since the last reading.
func TestUsageOfProcessors(t *testing.T) {
	var m usageMeter
	if _, err := m.read(time.Now()); err != nil {
		t.Fatal(err)
	}
	before := m
	end := time.Now().Add(time.Minute)
	for {
		// Work until the kernel has counted some of it.
		for range 1_000_000 {
			before.idle ^= before.total
		}
		u, err := m.read(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if u.Idle < 0 || u.Idle > 1 || u.Own < 0 {
			t.Fatalf("%+v", u)
		}
		if u.Own > 0 && u.Own <= 1.5 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a process that computes uses %+v", u)
		}
	}
}
