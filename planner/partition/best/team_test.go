package best

import (
	"sync/atomic"
	"testing"
)

func TestTeamRunsEveryMemberOnce(t *testing.T) {
	for _, members := range []int{1, 2, 7} {
		tm := newTeam(members)
		ran := make([]atomic.Int64, members)
		for range 1000 {
			tm.runAll(func(i int) { ran[i].Add(1) })
		}
		tm.close()
		for i := range ran {
			if n := ran[i].Load(); n != 1000 {
				t.Errorf("member %d of %d ran %d times, want 1000", i, members, n)
			}
		}
	}
}

func TestTeamIsClosedTwice(t *testing.T) {
	tm := newTeam(3)
	tm.runAll(func(int) {})
	tm.close()
	tm.close()
	if tm.job != nil {
		t.Error("a closed team keeps the last job, and all that it saw")
	}
}
