package best

import "time"

// shareCuts is the number of parts, with about equally many pins, into which the nets are cut.
// Members' shares are made of whole parts.
const shareCuts = 256

// shares divide the nets among the members of a team so that all need equally long. Nets with many
// pins stay in the cache, so equally many pins would not do; time is measured instead. The result
// of annealing does not depend on the division.
type shares struct {
	// shareCuts+1 nets, ascending.
	cuts []uint32
	// Member i has the parts at[i] to at[i+1].
	at []float64
	// The time of each member since the last adjustment.
	took []time.Duration
}

// newShares returns equal shares for that many members; adjust corrects them.
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

// runMember runs a member's job on its share and adds up the time.
func (s *shares) runMember(i int, job func(from, to uint32)) {
	began := time.Now()
	job(s.of(i))
	s.took[i] += time.Since(began)
}

// adjust moves the borders of the shares halfway to where all members would have taken equally
// long. Halfway, since a single sweep's times are noisy.
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

// cutsOf cuts nets into shareCuts parts with about equally many pins and returns the shareCuts+1
// borders, ascending. degree returns the number of pins of a net.
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
