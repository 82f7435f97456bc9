package vector

import (
	"encoding/binary"
	"math"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Selector finds order statistics exactly, by counting digits of the numbers'
// bits rather than by sorting. Its memory is used again.
type Selector struct {
	counts [1 << digitBits]uint32
}

// digitBits is how many bits of a magnitude are counted at a time.
const digitBits = 11

// SelectFloat32 returns the magnitude w_j of the ascending magnitudes w_1, w_2,
// ... w_f of the f finite numbers of v, with j = floor(f x share); 0 where j is
// 0. share is in [0, 1).
func (s *Selector) SelectFloat32(v []float32, share float64) float32 {
	key := func(i int) uint64 { return uint64(math.Float32bits(v[i]) &^ (1 << 31)) }
	return math.Float32frombits(uint32(s.choose(len(v), key, 31, 0x7f800000, share)))
}

// SelectFloat64 is [Selector.SelectFloat32] for float64 numbers.
func (s *Selector) SelectFloat64(v []float64, share float64) float64 {
	key := func(i int) uint64 { return math.Float64bits(v[i]) &^ (1 << 63) }
	return math.Float64frombits(s.choose(len(v), key, 63, 0x7ff<<52, share))
}

// choose selects among n keys of the given width in bits. Keys from infinity on
// do not take part.
func (s *Selector) choose(n int, key func(int) uint64, width uint, infinity uint64, share float64) uint64 {
	finite := 0
	for i := range n {
		if key(i) < infinity {
			finite++
		}
	}
	rank := int(float64(finite) * share) // one-based, from below
	if rank == 0 {
		return 0
	}
	return s.nth(n, key, width, rank)
}

// nth returns the key at a rank, from 1 on and from below.
func (s *Selector) nth(n int, key func(int) uint64, width uint, rank int) uint64 {
	known, prefix := uint(0), uint64(0) // the leading bits of the result
	for known < width {
		digit := min(digitBits, width-known)
		shift := width - known - digit
		counts := s.counts[:1<<digit]
		clear(counts)
		for i := range n {
			if k := key(i); k>>(shift+digit) == prefix {
				counts[k>>shift&(1<<digit-1)]++
			}
		}
		d := 0
		for ; rank > int(counts[d]); d++ {
			rank -= int(counts[d])
		}
		prefix = prefix<<digit | uint64(d)
		known += digit
	}
	return prefix
}

// Magnitude returns the bits of number i without its sign. They are ordered as
// the magnitudes, NaNs after infinity.
func Magnitude(kind element.Kind, values []byte, i int) uint64 {
	switch kind.Size() {
	case 2:
		return uint64(binary.LittleEndian.Uint16(values[i*2:]) &^ (1 << 15))
	case 4:
		return uint64(binary.LittleEndian.Uint32(values[i*4:]) &^ (1 << 31))
	default:
		return binary.LittleEndian.Uint64(values[i*8:]) &^ (1 << 63)
	}
}

// Largest returns the k-th largest [Magnitude] of the numbers in values, which
// are k or more; k is at least 1.
func (s *Selector) Largest(kind element.Kind, values []byte, k int) uint64 {
	n := len(values) / kind.Size()
	key := func(i int) uint64 { return Magnitude(kind, values, i) }
	return s.nth(n, key, uint(8*kind.Size()-1), n-k+1)
}
