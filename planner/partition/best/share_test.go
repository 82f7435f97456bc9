package best

import (
	"testing"
	"time"
)

func TestSharesFollowTheTimeTaken(t *testing.T) {
	h := &hypergraph{nets: 1000, start: []int{0}}
	for e := range 1000 {
		h.pins = append(h.pins, uint32(e))
	}
	for _, members := range []int{1, 2, 3, 7} {
		s := newShares(h, members)
		for range 20 {
			for i := range members { // the last nets take nine times as long as the first
				from, to := s.of(i)
				for e := from; e < to; e++ {
					s.took[i] += time.Duration(1 + 8*(e/500))
				}
			}
			s.adjust()
		}
		end := uint32(0)
		for i := range members {
			from, to := s.of(i)
			took := 0
			for e := from; e < to; e++ {
				took += int(1 + 8*(e/500))
			}
			if want := 5000 / members; from != end || took < want*9/10-50 || took > want*11/10+50 {
				t.Errorf("member %d of %d has nets %d to %d, which take %d, want about %d", i, members, from, to, took, want)
			}
			end = to
		}
		if end != 1000 {
			t.Errorf("%d members stop at net %d of 1000", members, end)
		}
	}
}
