package counts

import (
	"math"
	"math/bits"
)

// sketchDepth is how many counters each access goes to. The estimate, their
// least, is too high by more than e x accesses / width with a probability of
// at most e^-depth (Cormode and Muthukrishnan, "An improved data stream
// summary", theorem 1), and never too low.
const sketchDepth = 4

// A sketch is a count-min sketch with conservative update: it estimates the
// accesses of each (worker, key) that was folded into it.
type sketch struct {
	rows  [sketchDepth][]uint32
	mask  uint64
	total uint64 // accesses that went in
}

// newSketch returns a sketch of at most the given size, at least 64 KiB.
func newSketch(bytes int) *sketch {
	width := uint64(max(bytes/(4*sketchDepth), 4096))
	width = 1 << (bits.Len64(width) - 1)
	s := &sketch{mask: width - 1}
	for i := range s.rows {
		s.rows[i] = make([]uint32, width)
	}
	return s
}

func (s *sketch) bytes() int { return 4 * sketchDepth * int(s.mask+1) }

// mix is the finisher of splitmix64: every bit of x moves every bit of it.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func pairHash(worker int, key uint64) uint64 {
	return mix(key + mix(uint64(worker)+0x9e3779b97f4a7c15))
}

// place returns the counter of row i for hash h.
func (s *sketch) place(i int, h uint64) *uint32 {
	h2 := h>>32 | h<<32 | 1
	return &s.rows[i][mix(h+uint64(i)*h2)&s.mask]
}

// addAccesses counts n accesses of the pair with hash h and returns the new estimate.
func (s *sketch) addAccesses(h, n uint64) uint64 {
	s.total += n
	var at [sketchDepth]*uint32
	least := uint32(math.MaxUint32)
	for i := range at {
		at[i] = s.place(i, h)
		least = min(least, *at[i])
	}
	want := uint32(min(uint64(least)+n, math.MaxUint32))
	for _, c := range at {
		*c = max(*c, want)
	}
	return uint64(want)
}

// estimate returns at least the accesses of the pair with hash h.
func (s *sketch) estimate(h uint64) uint64 {
	least := uint32(math.MaxUint32)
	for i := range sketchDepth {
		least = min(least, *s.place(i, h))
	}
	return uint64(least)
}

// bound returns by how much an estimate is too high at most, but for one pair
// in e^4 = 54.
func (s *sketch) bound() uint64 {
	return uint64(math.Ceil(math.E * float64(s.total) / float64(s.mask+1)))
}

// registerCount makes the standard error of registers' estimate 13%.
const registerCount = 64

// registers estimate how many distinct keys a folded leaf was asked for
// (HyperLogLog, Flajolet et al. 2007).
type registers [registerCount]uint8

func (r *registers) addKey(key uint64) {
	h := mix(key + 0x9e3779b97f4a7c15)
	at := h % registerCount
	rank := uint8(bits.LeadingZeros64(h|registerCount-1) + 1)
	r[at] = max(r[at], rank)
}

func (r *registers) merge(s *registers) {
	for i := range r {
		r[i] = max(r[i], s[i])
	}
}

func (r *registers) estimate() uint64 {
	const m, alpha = float64(registerCount), 0.709
	sum, empty := 0.0, 0
	for _, rank := range r {
		sum += math.Ldexp(1, -int(rank))
		if rank == 0 {
			empty++
		}
	}
	n := alpha * m * m / sum
	if n <= 2.5*m && empty > 0 {
		n = m * math.Log(m/float64(empty))
	}
	return uint64(n + 0.5)
}
