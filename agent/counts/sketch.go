package counts

import (
	"math"
	"math/bits"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// sketchDepth is the number of counters for each access. The estimate, which is the least of
// them, is never too low, and too high by more than e x accesses / width with a probability of
// at most e^-depth (Cormode and Muthukrishnan, "An improved data stream summary", theorem 1).
const sketchDepth = 4

// A sketch is a count-min sketch with conservative update: it estimates the accesses of each
// pair of worker and key that was folded into it. Entries cannot be removed: what was promoted
// stays in it.
type sketch struct {
	rows  [sketchDepth][]uint32
	mask  uint64
	total uint64 // accesses that were added
}

// newSketch returns a sketch of at most the given size, but at least 64 KiB. The width is a
// power of two.
func newSketch(bytes int) *sketch {
	width := uint64(max(bytes/(4*sketchDepth), 4096))
	width = 1 << (bits.Len64(width) - 1)
	s := &sketch{mask: width - 1}
	for i := range s.rows {
		s.rows[i] = make([]uint32, width)
	}
	return s
}

// bytes returns the memory of the counters.
func (s *sketch) bytes() int { return 4 * sketchDepth * int(s.mask+1) }

// pairHash hashes a worker and a key.
func pairHash(worker int, key uint64) uint64 {
	return splitmix.Mix(key + splitmix.Next(uint64(worker)))
}

// place returns the counter for hash h in row i (double hashing).
func (s *sketch) place(i int, h uint64) *uint32 {
	h2 := h>>32 | h<<32 | 1
	return &s.rows[i][splitmix.Mix(h+uint64(i)*h2)&s.mask]
}

// addAccesses adds n accesses of the pair with hash h and returns the new estimate.
// Conservative update raises a counter only as far as the new estimate, which lowers the error
// and keeps the bound. Counters saturate.
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

// estimate returns an upper bound on the accesses of the pair with hash h.
func (s *sketch) estimate(h uint64) uint64 {
	least := uint32(math.MaxUint32)
	for i := range sketchDepth {
		least = min(least, *s.place(i, h))
	}
	return uint64(least)
}

// bound returns the error that an estimate exceeds with a probability of at most e^-4, one in
// 54.
func (s *sketch) bound() uint64 {
	return uint64(math.Ceil(math.E * float64(s.total) / float64(s.mask+1)))
}

// registerCount gives the estimate of registers a standard error of 13% (1.04/sqrt(64)).
const registerCount = 64

// registers estimate the number of distinct keys of a folded leaf (HyperLogLog, Flajolet et al.
// 2007).
type registers [registerCount]uint8

// addKey adds a key; adding it again changes nothing. The low bits of the hash choose a
// register, which keeps the most leading zeros that the rest has shown.
func (r *registers) addKey(key uint64) {
	h := splitmix.Next(key)
	at := h % registerCount
	rank := uint8(bits.LeadingZeros64(h|registerCount-1) + 1)
	r[at] = max(r[at], rank)
}

// merge makes the estimate that of both sets together. Keys in both count once.
func (r *registers) merge(s *registers) {
	for i := range r {
		r[i] = max(r[i], s[i])
	}
}

// estimate uses linear counting for small numbers, as the paper does in its section 4.
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
