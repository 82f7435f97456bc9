package best

import "time"

// shareCuts is how many parts of equally many pins the nets are cut into, from
// which the members' shares are made up.
const shareCuts = 256

// shares divide the nets among the members of a team, such that each needs as
// long for its own as the others. Nets that many pin stay in the cache, so that
// equally many pins would not do; time is measured. What comes of the annealing
// does not depend on it.
type shares struct {
	cuts []uint32        // shareCuts+1 nets, ascending
	at   []float64       // member i has the parts at[i] to at[i+1]
	took []time.Duration // by each member, since the last adjustment
}

func newShares(h *hypergraph, members int) *shares {
	s := &shares{cuts: h.cuts, took: make([]time.Duration, members)}
	for i := range members + 1 {
		s.at = append(s.at, float64(i*shareCuts)/float64(members))
	}
	return s
}

// of returns the first net of member i's share and the first beyond it.
func (s *shares) of(i int) (from, to uint32) {
	return s.cuts[int(s.at[i])], s.cuts[int(s.at[i+1])]
}

// runMember does a member's job on its share and notes the time.
func (s *shares) runMember(i int, job func(from, to uint32)) {
	began := time.Now()
	job(s.of(i))
	s.took[i] += time.Since(began)
}

// adjust brings the shares halfway to where all would have taken as long.
func (s *shares) adjust() {
	members := len(s.took)
	var all time.Duration
	for _, t := range s.took {
		all += t
	}
	was := append([]float64(nil), s.at...)
	i, before := 0, 0. // the member in whose share the border lies; time of those before it
	for j := 1; j < members; j++ {
		want := float64(all) * float64(j) / float64(members)
		for i < members-1 && before+float64(s.took[i]) < want {
			before += float64(s.took[i])
			i++
		}
		if s.took[i] == 0 {
			continue
		}
		border := was[i] + (want-before)/float64(s.took[i])*(was[i+1]-was[i])
		s.at[j] = (was[j] + border) / 2
	}
	clear(s.took)
}

// cutsOf cuts nets into shareCuts parts of about equally many pins: shareCuts+1 nets,
// ascending, where degree says how many pins each net has.
func cutsOf(nets int, degree func(e int) int) []uint32 {
	all := 0
	for e := range nets {
		all += degree(e)
	}
	cuts, sum := []uint32{0}, 0
	for e := range nets {
		for sum*shareCuts >= all*len(cuts) && len(cuts) < shareCuts {
			cuts = append(cuts, uint32(e))
		}
		sum += degree(e)
	}
	for len(cuts) <= shareCuts {
		cuts = append(cuts, uint32(nets))
	}
	return cuts
}
