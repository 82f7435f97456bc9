package plan

import (
	"testing"
	"time"
)

func TestRuns(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	first := NewRun("", now, 7)
	same := NewRun("", now, 7)
	if !first.Valid() || first == same {
		t.Errorf("two runs with the same nodes at the same time are %q and %q: want two names", first, same)
	}
	if !first.Began().Equal(now) {
		t.Errorf("run %s began at %v, want %v", first, first.Began(), now)
	}
	// The clock was set back by an hour.
	if second := NewRun(first, now.Add(-time.Hour), 7); second <= first {
		t.Errorf("run %s comes before %s, which began before it", second, first)
	}
	for _, bad := range []Run{"", "x", first + "0", Run("G" + string(first[1:])), Run(string(first[:28]) + "0" + string(first[29:]))} {
		if bad.Valid() {
			t.Errorf("%q is taken for a run", bad)
		}
	}
	// A run that was damaged is no reason not to name the next one.
	if !NewRun("zz", now, 1).Valid() {
		t.Error("no run after a damaged one")
	}
}
