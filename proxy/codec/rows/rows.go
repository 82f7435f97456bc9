// Package rows is the thresholding of activations, DCT-MP (Gupta et al. 2021,
// "Training Recommender Systems at Scale: Communication-Efficient Model and Data
// Parallelism", Algorithm 2): of each row of values, one sample's activations, only
// the largest by magnitude go, and of the gradient for the row only those of the
// same positions.
//
// In come the rows of a message, one after the other; out comes a vector of package
// sparse with the values that go, and which rows are open: their gradients go whole.
// Which rows belong to which keys, and what becomes of the mask, is the business of
// the caller, package values.
package rows

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// Kept is how many values of a row of so many go: as many as are left where the
// threshold is above d x sparsity of them, as section 2.1 of the paper has it, and at
// least one. (Line 6 of its Algorithm 2 names the value before, with which one or two
// more would go.) The sparsity is from 0 to below 1.
func Kept(d int, sparsity float64) int {
	return max(d-int(math.Ceil(float64(d)*sparsity)), 1)
}

// Span is a run of values of a message that belong to open rows: from the first on,
// up to before the end.
type Span struct{ From, To int }

// Chooser chooses what goes of the rows of messages. Its zero value is ready, and its
// memory is used again. It is not safe for use by several goroutines.
type Chooser struct {
	// Open are the rows of which all values are zeros or some are not finite, merged
	// where they are neighbours. Nothing says which of their values count.
	Open []Span
	// NotFinite counts the rows that had NaNs or infinities. They go whole.
	NotFinite int
	// Tau is the sum of the thresholds of the rows that are not open, Rows their number.
	Tau  float64
	Rows int

	vector   *sparse.Vector
	sparsity float64
	at       int     // position of the next row
	ratio    float32 // of a row's largest value, below which its threshold is not, most likely
	room     []uint64
	keys     []uint64
	spares   []uint64 // as long as keys
	narrow   []uint32
	spare    []uint32 // as long as narrow
}

// Begin makes v the vector of a message of n values, and the next rows its.
func (c *Chooser) Begin(v *sparse.Vector, kind element.Kind, n int, sparsity float64) {
	v.Reset(kind, n)
	c.vector, c.sparsity, c.at = v, sparsity, 0
	c.Open, c.NotFinite, c.Tau, c.Rows = c.Open[:0], 0, 0, 0
}

// Add takes the next row: values of the vector's kind. Of a row of zeros and of one
// that is not finite it notes that it is open; of any other it adds to the vector
// the Kept largest values, and those that are as large as the least of them, but no
// zeros, which the receiver puts there anyway.
func (c *Chooser) Add(row []byte) {
	v := c.vector
	d := len(row) / v.Kind.Size()
	if d == 0 {
		return
	}
	first := c.at
	c.at += d
	k := Kept(d, c.sparsity)
	if v.Kind == element.Float32 && d >= leastCompared && c.compared(row, d, k, first) {
		return
	}
	tau, most := c.selected(row, d, k)
	if c.opens(row, d, first, most) {
		return
	}
	c.Rows++
	c.Tau += fromMagnitude(v.Kind, tau)
	start := len(v.At)
	least := max(tau, 1) // no zeros
	if v.Kind == element.Float32 {
		for i := range d {
			if uint64(binary.LittleEndian.Uint32(row[4*i:])&^(1<<31)) >= least {
				v.At = append(v.At, uint32(first+i))
			}
		}
	} else {
		for i := range d {
			if vector.Magnitude(v.Kind, row, i) >= least {
				v.At = append(v.At, uint32(first+i))
			}
		}
	}
	c.emit(row, first, len(v.At)-start)
}

// emit sets the mask and appends the values of the last n positions.
func (c *Chooser) emit(row []byte, first, n int) {
	v := c.vector
	size := v.Kind.Size()
	at := v.At[len(v.At)-n:]
	if size == 4 {
		for _, p := range at {
			v.Mask[p/64] |= 1 << (p % 64)
			i := (int(p) - first) * 4
			v.Values = binary.LittleEndian.AppendUint32(v.Values, binary.LittleEndian.Uint32(row[i:]))
		}
		return
	}
	for _, p := range at {
		v.Mask.Set(int(p))
		i := (int(p) - first) * size
		v.Values = append(v.Values, row[i:i+size]...)
	}
}

// opens reports whether a row with this largest magnitude is open, and then notes it.
func (c *Chooser) opens(row []byte, d, first int, most uint64) bool {
	v := c.vector
	finite := most < infinity(v.Kind)
	if finite && most > 0 {
		return false
	}
	if n := len(c.Open); n > 0 && c.Open[n-1].To == first {
		c.Open[n-1].To = first + d
	} else {
		c.Open = append(c.Open, Span{first, first + d})
	}
	if finite {
		return true
	}
	c.NotFinite++
	size := v.Kind.Size()
	for i := range d {
		if !isZero(row[i*size : (i+1)*size]) {
			v.At = append(v.At, uint32(first+i))
			v.Mask.Set(first + i)
			v.Values = append(v.Values, row[i*size:(i+1)*size]...)
		}
	}
	return true
}

func isZero(number []byte) bool {
	for _, b := range number {
		if b != 0 {
			return false
		}
	}
	return true
}

// leastCompared is how long a row is for which comparing all of it with a guess and
// looking at the rest pays.
const leastCompared = 32

// tries is how often a guess that was too high is made smaller before all of a row is
// looked at.
const tries = 4

// compared is the rest of Add for float32 rows whose threshold is not below a guess:
// the values from the guess on are found at memory's speed, and only among them is
// the threshold looked for. Without ok nothing has happened.
func (c *Chooser) compared(row []byte, d, k, first int) (ok bool) {
	v := c.vector
	if !(c.ratio > 0) || 2*k > d {
		return false
	}
	most := vector.MaxMagnitude(v.Kind, row)
	guess := c.ratio * float32(most)
	if !(guess > 0) || guess > math.MaxFloat32 {
		return false
	}
	numbers := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(row))), d)
	if n := sparse.Words(d); cap(c.room) < n {
		c.room = make([]uint64, n)
	}
	start := len(v.At)
	at, found := v.At, v.At[start:]
	for range tries {
		at = vector.CompareFloat32(numbers, guess, c.room[:sparse.Words(d)], v.At, first)
		if found = at[start:]; len(found) >= k {
			break
		}
		guess *= 0.75
	}
	want := k + k/4 + 2*int(math.Sqrt(float64(k))) + 2
	c.ratio = min(guess/float32(most)*(1+0.1*max(-1, min(1, float32(len(found)-want)/float32(want)))), 1)
	if len(found) < k {
		v.At = at[:start]
		return false
	}
	c.narrow = slices.Grow(c.narrow[:0], len(found))[:len(found)]
	for i, p := range found {
		c.narrow[i] = math.Float32bits(numbers[int(p)-first]) &^ (1 << 31)
	}
	tau := largest(c.narrow, c.narrowRoom(), k)
	v.At = at[:start+c.keep(found, numbers, first, tau)]
	c.Rows++
	c.Tau += float64(math.Float32frombits(tau))
	return true
}

// keep moves the positions of values from tau on to the beginning of found, sets the
// mask and appends the values, and returns how many these are. Nothing in it is a
// branch that depends on a value.
func (c *Chooser) keep(found []uint32, numbers []float32, first int, tau uint32) (kept int) {
	v := c.vector
	n := len(v.Values)
	v.Values = slices.Grow(v.Values, 4*len(found))
	values := v.Values[n : n+4*len(found)]
	for _, p := range found {
		number := math.Float32bits(numbers[int(p)-first])
		is := (tau - 1 - number&^(1<<31)) >> 31 // both are less than 2^31
		found[kept] = p
		binary.LittleEndian.PutUint32(values[4*kept:], number)
		v.Mask[p/64] |= uint64(is) << (p % 64)
		kept += int(is)
	}
	v.Values = v.Values[:n+4*kept]
	return kept
}

// infinity is the magnitude from which on numbers are not finite.
func infinity(kind element.Kind) uint64 {
	switch kind {
	case element.Float32:
		return 0x7f800000
	case element.Float64:
		return 0x7ff << 52
	case element.Float16:
		return 0x7c00
	default:
		return 0x7f80
	}
}

// selected returns the k-th largest magnitude of a row and the largest, looking at all
// of it.
func (c *Chooser) selected(row []byte, d, k int) (tau, most uint64) {
	kind := c.vector.Kind
	if kind == element.Float32 {
		c.narrow = slices.Grow(c.narrow[:0], d)[:d]
		largestOf := uint32(0)
		for i := range c.narrow {
			m := binary.LittleEndian.Uint32(row[4*i:]) &^ (1 << 31)
			c.narrow[i] = m
			largestOf = max(largestOf, m)
		}
		if k == 1 {
			return uint64(largestOf), uint64(largestOf)
		}
		tau := largest(c.narrow, c.narrowRoom(), k)
		if whole := math.Float32frombits(largestOf); whole > 0 && whole <= math.MaxFloat32 && c.ratio == 0 {
			c.ratio = 0.85 * math.Float32frombits(tau) / whole
		}
		return uint64(tau), uint64(largestOf)
	}
	c.keys = c.keys[:0]
	for i := range d {
		m := vector.Magnitude(kind, row, i)
		c.keys = append(c.keys, m)
		most = max(most, m)
	}
	c.spares = slices.Grow(c.spares[:0], d)[:d]
	return largest(c.keys, c.spares, k), most
}

// narrowRoom is room for as many keys as c.narrow has.
func (c *Chooser) narrowRoom() []uint32 {
	c.spare = slices.Grow(c.spare[:0], len(c.narrow))[:len(c.narrow)]
	return c.spare
}

// fromMagnitude is the number of a finite magnitude.
func fromMagnitude(kind element.Kind, m uint64) float64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], m)
	return kind.At(b[:], 0)
}
