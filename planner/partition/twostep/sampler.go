package twostep

import (
	"math"
	"math/rand/v2"
)

// A sampler draws from the unassigned samples, each with the same probability and independently
// (DWW21 section 4.2, DW23 Alg. 1 line 3).
type sampler struct {
	random *rand.Rand
	free   []uint32 // the unassigned samples, in no order
	// By sample, its position in free.
	place []uint32
	drawn []uint32
}

func newSampler(n int, random *rand.Rand) *sampler {
	s := &sampler{random: random, free: make([]uint32, n), place: make([]uint32, n)}
	for i := range s.free {
		s.free[i], s.place[i] = uint32(i), uint32(i)
	}
	return s
}

// removeSample removes a sample in constant time, by putting the last one in its place.
func (s *sampler) removeSample(x uint32) {
	last := s.free[len(s.free)-1]
	s.free[s.place[x]], s.place[last] = last, s.place[x]
	s.free = s.free[:len(s.free)-1]
}

// draw returns each unassigned sample with probability expected/|D'|, in no particular order. It
// jumps from one to the next by geometrically distributed steps, so it takes time in proportion to
// what it draws. The slice is valid until the next draw or removeSample.
func (s *sampler) draw(expected int) []uint32 {
	if expected >= len(s.free) {
		return s.free
	}
	s.drawn = s.drawn[:0]
	step := -1 / math.Log1p(-float64(expected)/float64(len(s.free)))
	for at := -1.0; ; {
		at += 1 + math.Floor(s.random.ExpFloat64()*step)
		if at >= float64(len(s.free)) {
			return s.drawn
		}
		s.drawn = append(s.drawn, s.free[int(at)])
	}
}
