package rows

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// addFloat32 is Add for a row of d float32 numbers of which k go. Selecting the k-th
// largest moves numbers around; here the threshold is guessed and the numbers above it are
// counted, at memory speed, until the count is k. Then the mask is made in one pass, and
// the values in it are gathered.
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

// guesses is how many counts are made at guessed thresholds before plain bisection takes
// over, which bounds the counts of any row to guesses + 32.
const guesses = 8

// search returns a threshold, as the bits of a magnitude, and the number n of values that
// reach it. It is the largest threshold that at least k values reach, or a lower one that
// exactly k reach, which selects the same values. mean is the row's mean magnitude; most is
// the largest, finite and not zero. It keeps c.ratio, the usual threshold in units of the
// mean, as the first guess for the next row: rows of one layer are alike.
func (c *Chooser) search(row []byte, d, k int, mean float32, most uint32) (least uint32, n int) {
	// Invariant: many values, k or more, reach low; few values, less than k, reach high.
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

// between guesses the threshold that k values reach. Between two counts it interpolates
// linearly; with only one, of n values from at on, it extrapolates by how fast the count
// usually falls there.
func between(low uint32, many int, high uint32, few, k int, at float32, n int, most uint32) float32 {
	if low > 0 && high <= most {
		from, to := math.Float32frombits(low), math.Float32frombits(high)
		return from + (to-from)*(float32(many-k)+0.5)/float32(many-few)
	}
	const steepness = 3.5 // per cent by which the count falls where the threshold grows by one
	return at * (1 + 2*float32(n-k)/float32(n+k)/steepness)
}

// take appends the n values of a row of d that are in the mask, with their positions, and
// returns the bits of the least of their magnitudes. It takes groups of four from each word
// of the mask without asking whether there are as many; what is too much is overwritten by
// the next word's.
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
