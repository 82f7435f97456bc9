package dataset

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// A HashScheme is a way to draw one sample per bin from a row.
type HashScheme int

const (
	// OPH is one-permutation hashing with re-randomized densification. It considers which features
	// a row has, not their values. Two rows A and B have the same sample in a bin with probability
	// |A and B| / |A or B|.
	OPH HashScheme = iota
	// BCWS is bin-wise consistent weighted sampling. The values must not be
	// negative. Within a bin that two rows S and T both use, their samples are
	// the same with probability sum min(S, T) / sum max(S, T) over the bin's
	// features; over all bins that is close to the min-max similarity of the
	// rows, and equal to it with one bin or with values of 0 and 1.
	BCWS
)

// ParseHashScheme returns the scheme of that name, "oph" or "bcws".
func ParseHashScheme(name string) (HashScheme, error) {
	for _, s := range []HashScheme{OPH, BCWS} {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("no hashing scheme %q: use oph or bcws", name)
}

// String returns the scheme's name.
func (s HashScheme) String() string {
	switch s {
	case OPH:
		return "oph"
	case BCWS:
		return "bcws"
	}
	return fmt.Sprintf("Scheme(%d)", int(s))
}

// DefaultHashBits is the usual number of bits of a sample's code.
const DefaultHashBits = 8

// MaxHashBins and MaxHashBits bound the options.
const (
	MaxHashBins = 1 << 24
	MaxHashBits = 32
)

// HashOptions configure hashing. Equal options hash equal rows alike, on any machine.
type HashOptions struct {
	Scheme HashScheme
	Bins   int    // samples drawn from a row, 1..MaxHashBins
	Bits   int    // of a sample's code, 1..MaxHashBits; 0 means DefaultHashBits
	Seed   uint64 // of the hash functions
}

func (o HashOptions) bits() int {
	if o.Bits == 0 {
		return DefaultHashBits
	}
	return o.Bits
}

// validate returns the first option that is out of range.
func (o HashOptions) validate() error {
	switch {
	case o.Scheme != OPH && o.Scheme != BCWS:
		return fmt.Errorf("unknown hashing scheme %d: use OPH or BCWS", int(o.Scheme))
	case o.Bins < 1 || o.Bins > MaxHashBins:
		return fmt.Errorf("%d hash bins: use 1 to %d", o.Bins, MaxHashBins)
	case o.Bits < 0 || o.Bits > MaxHashBits:
		return fmt.Errorf("%d hash bits: use 1 to %d", o.Bits, MaxHashBits)
	}
	return nil
}

// A Hasher hashes rows one after the other. It is for one goroutine; for others make a
// [Hasher.Clone], which hashes alike.
//
// Between rows all of first is -1. The lists by feature are indexed by the feature's position in
// the row.
type Hasher struct {
	options HashOptions
	key     hashKeys
	// The number of random bins that are tried as donors before all used ones are compared.
	probes int

	// Of the present row, by feature:
	ids []uint64
	// The feature's position under the one permutation.
	hash []uint64
	log  []float64 // BCWS: the logarithm of the feature's value
	next []int32   // the next feature of the same bin, or -1
	// By bin, its first feature, or -1.
	first []int32
	// The bins that have a feature.
	used []int32
	// By bin, the sample drawn.
	sample []sample
}

// A sample is the element drawn from a row for one bin.
type sample struct {
	id    uint64 // the feature
	level int64  // BCWS: the step of the feature's value, t in Ioffe's terms
}

// NewHasher returns a hasher, or an error that says which option is out of range.
func NewHasher(o HashOptions) (*Hasher, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.Bits = o.bits()
	h := &Hasher{
		options: o,
		key:     newHashKeys(o.Seed),
		probes:  int(math.Ceil(math.Sqrt(float64(o.Bins)))),
		first:   make([]int32, o.Bins),
		sample:  make([]sample, o.Bins),
	}
	for b := range h.first {
		h.first[b] = -1
	}
	return h, nil
}

// Clone returns a hasher with the same hash functions, for another goroutine.
func (h *Hasher) Clone() *Hasher {
	c, err := NewHasher(h.options)
	if err != nil {
		panic("hashing: options became invalid: " + err.Error()) // checked by NewHasher
	}
	return c
}

// Append hashes a row and appends its new features to dst in ascending order: one per bin, with id
// 1 + (bin << Bits) + code and value 1. A row without features (for BCWS, with zeros only) gets
// none. ids must be distinct. Only BCWS reads values, which must then be finite and not negative.
// Append allocates nothing once it has seen the longest row, if dst has room.
func (h *Hasher) Append(dst, ids []uint64, values []float32) ([]uint64, error) {
	ok, err := h.draw(ids, values)
	if err != nil || !ok {
		return dst, err
	}
	for b := range h.sample {
		dst = append(dst, 1+uint64(b)<<h.options.Bits+h.code(b))
	}
	return dst, nil
}

// draw fills h.sample from a row. It returns false if the row is empty.
func (h *Hasher) draw(ids []uint64, values []float32) (bool, error) {
	if err := h.distribute(ids, values); err != nil {
		return false, err
	}
	if len(h.used) == 0 {
		return false, nil
	}
	for b := range h.sample {
		if h.first[b] >= 0 {
			h.sample[b] = h.pick(b, h.key.permutation)
		} else {
			// Re-randomized densification: not the donor's sample again, but a
			// new one drawn from the donor's features by this bin's own hash
			// function.
			h.sample[b] = h.pick(h.donor(b), h.key.redraw(b))
		}
	}
	// Restore the invariant at the cost of the used bins only.
	for _, b := range h.used {
		h.first[b] = -1
	}
	return true, nil
}

// distribute puts the features of a row into their bins. The high word of hash x Bins is the bin,
// the low word the position within it, so that one hash gives both. The features of a bin form a
// list through next.
func (h *Hasher) distribute(ids []uint64, values []float32) error {
	h.ids, h.hash, h.log, h.next, h.used = ids, h.hash[:0], h.log[:0], h.next[:0], h.used[:0]
	if h.options.Scheme == BCWS {
		if len(values) != len(ids) {
			return fmt.Errorf("%d values for %d features", len(values), len(ids))
		}
		for i, v := range values {
			// The negated comparison also catches NaN.
			if !(v >= 0) || math.IsInf(float64(v), 1) {
				return fmt.Errorf("feature %d has the value %g: bcws needs finite values that are not negative, use oph", ids[i], v)
			}
		}
	}
	for i, id := range ids {
		h.next, h.hash = append(h.next, -1), append(h.hash, 0)
		if h.options.Scheme == BCWS {
			h.log = append(h.log, math.Log(float64(values[i])))
			// A zero is no feature. It keeps its place in the lists so that they stay indexed by
			// position.
			if values[i] == 0 {
				continue
			}
		}
		bin, place := bits.Mul64(splitmix.Next(id^h.key.permutation), uint64(h.options.Bins))
		h.hash[i] = place
		if h.first[bin] < 0 {
			h.used = append(h.used, int32(bin))
		}
		h.next[i], h.first[bin] = h.first[bin], int32(i)
	}
	return nil
}

// donor returns the bin that an empty bin b draws from: the first used one in an order of all bins
// that depends on b alone, so that two rows agree on it. The order is: h.probes random bins, then
// all bins by a random rank. If many bins are used, one is probably among the first; if few are,
// comparing all of them is cheap. So the cost is of the order of the square root of Bins.
func (h *Hasher) donor(b int) int {
	key := h.key.order(b)
	for t := range h.probes {
		bin, _ := bits.Mul64(splitmix.Next(key+uint64(t)), uint64(h.options.Bins))
		if h.first[bin] >= 0 {
			return int(bin)
		}
	}
	best, rank := int32(-1), uint64(0)
	for _, u := range h.used {
		if r := splitmix.Next(key ^ h.key.rank ^ uint64(u)); best < 0 || r < rank || r == rank && u < best {
			best, rank = u, r
		}
	}
	return int(best)
}

// code returns the code of bin b's sample: the low bits of a hash.
func (h *Hasher) code(b int) uint64 {
	s := h.sample[b]
	return splitmix.Next(splitmix.Next(s.id^h.key.code)+uint64(s.level)) & (1<<h.options.Bits - 1)
}
