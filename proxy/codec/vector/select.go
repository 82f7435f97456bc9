package vector

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Selector finds order statistics exactly, by counting digits of the numbers'
// bits rather than by sorting. Its memory, at most a third of what it selected
// from, is used again.
type Selector struct {
	counts [1 << digitBits]uint32
	narrow []uint32
	wide   []uint64
}

// digitBits is how many bits of a magnitude are counted at a time.
const digitBits = 11

// SelectFloat32 returns the magnitude w_j of the ascending magnitudes w_1, w_2,
// ... w_f of the f finite numbers of v, with j = floor(f x share); 0 where j is
// 0. share is in [0, 1).
//
// Where few numbers are above, a sample first tells a bound that is most likely
// below the result, so that only the numbers above the bound need a closer look;
// if it is not, all do.
func (s *Selector) SelectFloat32(v []float32, share float64) float32 {
	if len(v) >= leastToSample && share >= leastShareToSample {
		if key, ok := s.above32(v, share); ok {
			return math.Float32frombits(key)
		}
	}
	key := func(i int) uint64 { return uint64(math.Float32bits(v[i]) &^ (1 << 31)) }
	return math.Float32frombits(uint32(s.choose(len(v), key, 31, infinity32, share)))
}

// SelectFloat64 is [Selector.SelectFloat32] for float64 numbers.
func (s *Selector) SelectFloat64(v []float64, share float64) float64 {
	if len(v) >= leastToSample && share >= leastShareToSample {
		if key, ok := s.above64(v, share); ok {
			return math.Float64frombits(key)
		}
	}
	key := func(i int) uint64 { return math.Float64bits(v[i]) &^ (1 << 63) }
	return math.Float64frombits(s.choose(len(v), key, 63, infinity64, share))
}

const (
	leastToSample      = 4096
	leastShareToSample = 0.75
	sampled            = 16384 // numbers in a sample, at most

	infinity32 = 0x7f800000
	infinity64 = 0x7ff << 52
)

// sampleRank is the rank in a sample of so many that is most likely below the
// share of all: by four times the rank's deviation.
func sampleRank(count int, share float64) int {
	above := (1 - share) * float64(count)
	return max(count-int(above+4*math.Sqrt(above)+4), 1)
}

// above32 selects among the numbers above a bound that a sample tells.
func (s *Selector) above32(v []float32, share float64) (key uint32, ok bool) {
	keys := s.narrow[:0]
	stride := len(v)/sampled + 1
	for i := stride / 2; i < len(v); i += stride {
		keys = append(keys, math.Float32bits(v[i])&^(1<<31))
	}
	bound := math.Float32frombits(nth(&s.counts, keys, 31, sampleRank(len(keys), share)))
	zeros := bound == 0 // then only the others need a closer look
	bound = max(bound, math.SmallestNonzeroFloat32)
	keys = keys[:0]
	finite := len(v)
	var mask [64]uint64
	for first := 0; first < len(v); first += 64 * len(mask) {
		part := v[first:min(first+64*len(mask), len(v))]
		words := mask[:(len(part)+63)/64]
		CompareFloat32(part, bound, words)
		for i, w := range words {
			for ; w != 0; w &= w - 1 {
				k := math.Float32bits(part[i*64+bits.TrailingZeros64(w)]) &^ (1 << 31)
				if k < infinity32 {
					keys = append(keys, k)
				} else {
					finite--
				}
			}
		}
		if len(keys) > len(v)/3 {
			return 0, false // the sample misled
		}
	}
	s.narrow = keys
	rank := rankOf(finite, share) - (finite - len(keys)) // among those above the bound
	if rank < 1 {
		return 0, zeros
	}
	return nth(&s.counts, keys, 31, rank), true
}

// above64 is above32 for float64 numbers.
func (s *Selector) above64(v []float64, share float64) (key uint64, ok bool) {
	keys := s.wide[:0]
	stride := len(v)/sampled + 1
	for i := stride / 2; i < len(v); i += stride {
		keys = append(keys, math.Float64bits(v[i])&^(1<<63))
	}
	bound := math.Float64frombits(nth(&s.counts, keys, 63, sampleRank(len(keys), share)))
	zeros := bound == 0 // then only the others need a closer look
	bound = max(bound, math.SmallestNonzeroFloat64)
	keys = keys[:0]
	finite := len(v)
	var mask [64]uint64
	for first := 0; first < len(v); first += 64 * len(mask) {
		part := v[first:min(first+64*len(mask), len(v))]
		words := mask[:(len(part)+63)/64]
		CompareFloat64(part, bound, words)
		for i, w := range words {
			for ; w != 0; w &= w - 1 {
				k := math.Float64bits(part[i*64+bits.TrailingZeros64(w)]) &^ (1 << 63)
				if k < infinity64 {
					keys = append(keys, k)
				} else {
					finite--
				}
			}
		}
		if len(keys) > len(v)/3 {
			return 0, false
		}
	}
	s.wide = keys
	rank := rankOf(finite, share) - (finite - len(keys))
	if rank < 1 {
		return 0, zeros
	}
	return nth(&s.counts, keys, 63, rank), true
}

// rankOf is floor(finite x share).
func rankOf(finite int, share float64) int { return int(float64(finite) * share) }

// nth returns the key at a rank, from 1 on and from below, among keys of a width
// in bits, which it reorders.
func nth[K uint32 | uint64](counts *[1 << digitBits]uint32, keys []K, width uint, rank int) K {
	for width > 0 {
		digit := min(digitBits, width)
		width -= digit
		mask := K(1)<<digit - 1
		clear(counts[:])
		for _, k := range keys {
			counts[k>>width&mask]++
		}
		d := K(0)
		for ; rank > int(counts[d]); d++ {
			rank -= int(counts[d])
		}
		same := keys[:0]
		for _, k := range keys {
			if k>>width&mask == d {
				same = append(same, k)
			}
		}
		keys = same
	}
	return keys[0]
}

// choose selects among n keys of the given width in bits, where they are. Keys
// from infinity on do not take part.
func (s *Selector) choose(n int, key func(int) uint64, width uint, infinity uint64, share float64) uint64 {
	finite := 0
	for i := range n {
		if key(i) < infinity {
			finite++
		}
	}
	rank := rankOf(finite, share)
	if rank == 0 {
		return 0
	}
	return s.nthWhere(n, key, width, rank)
}

// nthWhere is nth for keys where they are.
func (s *Selector) nthWhere(n int, key func(int) uint64, width uint, rank int) uint64 {
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
	return s.nthWhere(n, key, uint(8*kind.Size()-1), n-k+1)
}
