package best

import (
	"slices"
	"testing"
	"time"
)

func TestSharesFollowTheTimeTaken(t *testing.T) {
	h := &hypergraph{cuts: cutsOf(1000, func(int) int { return 1 })}
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

// Parts have equally many pins as far as nets can be kept whole, and all nets are in one.
func TestCutsHaveEquallyManyPins(t *testing.T) {
	for name, degree := range map[string]func(int) int{
		"even": func(int) int { return 3 },
		"hot":  func(e int) int { return 1 + 20_000/(e+1) },
	} {
		const nets = 30_000
		cuts := cutsOf(nets, degree)
		if len(cuts) != shareCuts+1 || cuts[0] != 0 || cuts[shareCuts] != nets || !slices.IsSorted(cuts) {
			t.Fatalf("%s: cuts from %d to %d, %d of them, sorted %v", name, cuts[0], cuts[len(cuts)-1], len(cuts), slices.IsSorted(cuts))
		}
		all, most := 0, 0
		for e := range nets {
			all += degree(e)
			most = max(most, degree(e))
		}
		for i, from := range cuts[:shareCuts] {
			pins := 0
			for e := from; e < cuts[i+1]; e++ {
				pins += degree(int(e))
			}
			if pins > all/shareCuts+1+most {
				t.Errorf("%s: part %d has %d pins of %d, and no net more than %d", name, i, pins, all, most)
			}
		}
	}
}
