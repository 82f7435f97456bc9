package rows

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// addFloat32 is Add for d float32 numbers of which k go. The threshold is looked for by
// counting the values from a guess on, which is done at memory's speed, rather than by
// selecting among them; then the mask is made in one go, and what is in it taken.
func (c *Chooser) addFloat32(row []byte, d, k, first int) {
	v := c.vector
	sum, most := vector.Scale32(row)
	if c.opens(row, d, first, uint64(most)) {
		return
	}
	least, n := c.search(row, d, k, sum/float32(d), most)
	if least == 0 { // all go, but no zeros
		least, n = 1, vector.CountFrom32(row, 1)
	}
	vector.MaskFrom32(v.Mask, first, row, least)
	tau := c.take(row, first, d, n)
	if n < k { // the k-th largest is a zero
		tau = 0
	}
	c.Rows++
	c.Tau += float64(math.Float32frombits(tau))
}

// guesses is how many counts are made where the threshold is guessed to be before the
// bits between the bounds are halved.
const guesses = 8

// search returns the largest magnitude, as bits, from which on at least k of a row's are,
// or a lower one from which on exactly k are, which means the same values; and how many
// these are. most is the largest magnitude there is, which is finite and not zero.
func (c *Chooser) search(row []byte, d, k int, mean float32, most uint32) (least uint32, n int) {
	// From low on are `many` values, k or more; from high on `few`, less than k.
	low, many, high, few := uint32(0), d, most+1, 0
	if k == 1 {
		low, many = most, vector.CountFrom32(row, most)
	}
	next := c.ratio * mean
	for tries := 0; high-low > 1 && many != k; tries++ {
		at := low + (high-low)/2
		if tries < guesses {
			if bits := math.Float32bits(next); next > 0 { // not NaN
				at = max(min(bits, high-1), low+1)
			}
		}
		n := vector.CountFrom32(row, at)
		if n >= k {
			low, many = at, n
		} else {
			high, few = at, n
		}
		next = between(low, many, high, few, k, math.Float32frombits(at), n, most)
	}
	if tau := math.Float32frombits(low); k > 1 && mean > 0 {
		if is := tau / mean; c.ratio == 0 {
			c.ratio = is
		} else if is < math.MaxFloat32 {
			c.ratio += (is - c.ratio) / 4
		}
	}
	return low, many
}

// between guesses where k values are. Between two counts it goes by a straight line; with
// one, n values from at on, by how fast the values of many a layer become fewer there.
func between(low uint32, many int, high uint32, few, k int, at float32, n int, most uint32) float32 {
	if low > 0 && high <= most {
		from, to := math.Float32frombits(low), math.Float32frombits(high)
		return from + (to-from)*(float32(many-k)+0.5)/float32(many-few)
	}
	const steepness = 3.5 // per cent by which the count falls where the threshold grows by one
	return at * (1 + 2*float32(n-k)/float32(n+k)/steepness)
}

// take appends those n values of a row of d that are in the mask, and their positions,
// and returns the bits of the least of their magnitudes. Of each word of the mask it
// takes some without asking whether there are as many.
func (c *Chooser) take(row []byte, first, d, n int) (least uint32) {
	const ahead = 4
	v := c.vector
	v.Values, v.At = slices.Grow(v.Values, 4*(n+ahead)), slices.Grow(v.At, n+ahead)
	to, places := v.Values[len(v.Values):len(v.Values)+4*(n+ahead)], v.At[len(v.At):len(v.At)+n+ahead]
	least, next := math.MaxUint32, 0
	for from := first; from < first+d; {
		part := min(64-from%64, first+d-from)
		word := v.Mask[from/64] >> (from % 64) & (^uint64(0) >> (64 - part))
		numbers := row[4*(from-first):]
		end := next + bits.OnesCount64(word)
		for ; next < end; next += ahead {
			values, place := (*[4 * ahead]byte)(to[4*next:]), (*[ahead]uint32)(places[next:])
			for i := range ahead {
				p := bits.TrailingZeros64(word) & 63
				number := binary.LittleEndian.Uint32(numbers[4*p:])
				binary.LittleEndian.PutUint32(values[4*i:], number)
				place[i] = uint32(from + p)
				if word != 0 {
					least = min(least, number&^(1<<31))
				}
				word &= word - 1
			}
		}
		next = end
		from += part
	}
	v.Values, v.At = v.Values[:len(v.Values)+4*n], v.At[:len(v.At)+n]
	return least
}
