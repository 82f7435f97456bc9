package vector

import (
	"encoding/binary"
	"math"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Selector finds order statistics exactly, by counting digits of the numbers' bits from the
// top, as in a radix sort, rather than by comparing: a pass over the numbers for each
// digit, whatever their distribution, and no branch that cannot be predicted. Its memory,
// as much as it selects among, is reused. It is not safe for concurrent use.
type Selector struct {
	counts [1 << digitBits]uint32
	keys   []uint64
}

// digitBits is how many bits of a magnitude are counted in a pass. The counters of a digit
// take 8 KiB, a part of the first-level cache.
const digitBits = 11

// SelectFloat32 returns the magnitude w_j of the ascending magnitudes w_1, w_2, ... w_f of
// the f finite numbers of v, with j = floor(f x share); 0 if j is 0. share is in [0, 1).
func (s *Selector) SelectFloat32(v []float32, share float64) float32 {
	key := func(i int) uint64 { return uint64(math.Float32bits(v[i]) &^ (1 << 31)) }
	return math.Float32frombits(uint32(s.choose(len(v), key, 31, infinity32, share)))
}

// SelectFloat64 is [Selector.SelectFloat32] for float64 numbers.
func (s *Selector) SelectFloat64(v []float64, share float64) float64 {
	key := func(i int) uint64 { return math.Float64bits(v[i]) &^ (1 << 63) }
	return math.Float64frombits(s.choose(len(v), key, 63, infinity64, share))
}

const (
	leastToSample      = 4096
	leastShareToSample = 0.75
	sampled            = 8192 // numbers in a sample, at most

	infinity32 = 0x7f800000
	infinity64 = 0x7ff << 52
)

// Bound returns a number that is most likely not above the share of n magnitudes, and above
// most of these: then [Selector.AmongFloat32] has to look only at the numbers that are not
// below it. It goes by a sample; at returns number i. ok is false if too few numbers are
// above, or n is too small, for a sample to help. A wrong bound costs time and never the
// result.
func (s *Selector) Bound(n int, share float64, at func(i int) float64) (bound float64, ok bool) {
	if n < leastToSample || share < leastShareToSample {
		return 0, false
	}
	keys := s.keys[:0]
	stride := n/sampled + 1
	for i := stride / 2; i < n; i += stride {
		keys = append(keys, math.Float64bits(at(i))&^(1<<63))
	}
	s.keys = keys
	bound = math.Float64frombits(nth(&s.counts, keys, 63, sampleRank(len(keys), share)))
	return bound, bound-bound == 0
}

// sampleRank is a rank in a sample of count numbers that is most likely below the share of
// all: by four standard deviations of the rank.
func sampleRank(count int, share float64) int {
	above := (1 - share) * float64(count)
	return max(count-int(above+4*math.Sqrt(above)+4), 1)
}

// Sample returns the magnitude below which about the share of n magnitudes are: exactly for
// up to 8192 numbers, from a sample of as many for more. at returns number i. Numbers that
// are not finite count as the largest.
func (s *Selector) Sample(n int, share float64, at func(i int) float64) float64 {
	keys := s.keys[:0]
	stride := (n + sampled - 1) / sampled
	for i := stride / 2; i < n; i += stride {
		keys = append(keys, math.Float64bits(at(i))&^(1<<63))
	}
	s.keys = keys
	rank := rankOf(len(keys), share)
	if rank < 1 {
		return 0
	}
	return math.Float64frombits(nth(&s.counts, keys, 63, rank))
}

// AmongFloat32 is [Selector.SelectFloat32] if only the numbers at the given positions can
// be the result: all others are finite and smaller than these. ok is false if the result is
// one of the others.
func (s *Selector) AmongFloat32(v []float32, at []uint32, share float64) (result float32, ok bool) {
	keys := s.keys[:0]
	for _, i := range at {
		if k := math.Float32bits(v[i]) &^ (1 << 31); k < infinity32 {
			keys = append(keys, uint64(k))
		}
	}
	key, ok := s.among(keys, len(v), len(at), 31, share)
	return math.Float32frombits(uint32(key)), ok
}

// AmongFloat64 is [Selector.AmongFloat32] for float64 numbers.
func (s *Selector) AmongFloat64(v []float64, at []uint32, share float64) (result float64, ok bool) {
	keys := s.keys[:0]
	for _, i := range at {
		if k := math.Float64bits(v[i]) &^ (1 << 63); k < infinity64 {
			keys = append(keys, k)
		}
	}
	key, ok := s.among(keys, len(v), len(at), 63, share)
	return math.Float64frombits(key), ok
}

// among selects among the finite ones of looked keys; n numbers exist in all.
func (s *Selector) among(keys []uint64, n, looked int, width uint, share float64) (key uint64, ok bool) {
	s.keys = keys
	finite := n - (looked - len(keys))
	rank := rankOf(finite, share) - (finite - len(keys)) // among the keys
	if rank < 1 {
		return 0, false
	}
	return nth(&s.counts, keys, width, rank), true
}

// rankOf is floor(finite x share).
func rankOf(finite int, share float64) int { return int(float64(finite) * share) }

// nth returns the key at a rank, counted from 1 from below, among keys of width bits, which
// it reorders. Keys that share the digit of the result so far are moved to the front in
// each pass, and only these are counted again.
func nth(counts *[1 << digitBits]uint32, keys []uint64, width uint, rank int) uint64 {
	for width > 0 {
		digit := min(digitBits, width)
		width -= digit
		mask := uint64(1)<<digit - 1
		clear(counts[:])
		for _, k := range keys {
			counts[k>>width&mask]++
		}
		// The digit of the result: the first at which the counts reach the rank.
		d := uint64(0)
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

// choose selects among n keys of width bits without copying them. Keys from infinity on do
// not take part.
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

// nthWhere is nth for keys that stay where they are: each pass goes over all of them.
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

// Magnitude returns the bits of number i without its sign. They are ordered as the
// magnitudes, NaNs after infinity.
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

// Largest returns the k-th largest [Magnitude] of the numbers in values; k is at least 1
// and at most their number.
func (s *Selector) Largest(kind element.Kind, values []byte, k int) uint64 {
	n := len(values) / kind.Size()
	key := func(i int) uint64 { return Magnitude(kind, values, i) }
	return s.nthWhere(n, key, uint(8*kind.Size()-1), n-k+1)
}
