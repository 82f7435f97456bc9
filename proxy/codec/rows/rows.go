// Package rows is the thresholding of activations, DCT-MP (Gupta et al. 2021, "Training
// Recommender Systems at Scale: Communication-Efficient Model and Data Parallelism",
// Algorithm 2): of each row of values, one sample's activations, only the largest by
// magnitude are sent, and of the gradient for the row only the same positions.
//
// A [Chooser] takes the rows of a message one after the other and fills a vector of package
// sparse with the values that go. It also lists the rows that are open, whose gradients
// must go whole. Which rows belong to which keys, and how the mask reaches the worker's
// next push, is the business of the caller, package values.
package rows

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// Kept returns how many values of a row of d go: as many as are left if the threshold is
// above d x sparsity of them, as section 2.1 of the paper has it, and at least one. (Line 6
// of its Algorithm 2 names the value before, with which one or two more would go.) The
// sparsity is in [0, 1).
func Kept(d int, sparsity float64) int {
	return max(d-int(math.Ceil(float64(d)*sparsity)), 1)
}

// Span is a run of a message's values that belong to open rows: the half-open interval
// [From, To).
type Span struct{ From, To int }

// Chooser chooses what goes of the rows of messages: Begin, then Add for each row. Its zero
// value is ready, and its memory is reused from message to message. It is not safe for
// concurrent use.
type Chooser struct {
	// Open lists the open rows, neighbours merged. A row is open if all its values are zero
	// or some are not finite: then no value says which positions matter.
	Open []Span
	// NotFinite counts the rows that had NaNs or infinities. They go whole.
	NotFinite int
	// Tau is the sum of the thresholds of the rows that are not open, Rows their number.
	Tau  float64
	Rows int

	vector   *sparse.Vector
	sparsity float64
	at       int     // position of the next row
	width    int     // of the last row; 0: no row yet
	kept     int     // how many of its values go
	ratio    float32 // of a row's mean magnitude, where its threshold is, most likely
	keys     []uint64
	spares   []uint64 // as long as keys
}

// Begin starts a message of n values whose rows fill v. It resets the counts and v.
func (c *Chooser) Begin(v *sparse.Vector, kind element.Kind, n int, sparsity float64) {
	v.Reset(kind, n)
	c.vector, c.sparsity, c.at, c.width = v, sparsity, 0, 0
	c.Open, c.NotFinite, c.Tau, c.Rows = c.Open[:0], 0, 0, 0
}

// Add takes the next row: values of the vector's kind. It notes a row of zeros, and one
// that is not finite, as open. Of any other it adds the Kept largest values to the vector,
// and those that tie with the smallest of these, but no zeros, which the receiver puts
// there anyway.
func (c *Chooser) Add(row []byte) {
	v := c.vector
	d := len(row) / v.Kind.Size()
	if d == 0 {
		return
	}
	first := c.at
	c.at += d
	if d != c.width { // most rows are as long as the one before
		c.width, c.kept = d, Kept(d, c.sparsity)
	}
	k := c.kept
	if v.Kind == element.Float32 {
		c.addFloat32(row, d, k, first)
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
	for i := range d {
		if vector.Magnitude(v.Kind, row, i) >= least {
			v.At = append(v.At, uint32(first+i))
		}
	}
	c.emit(row, first, len(v.At)-start)
}

// emit adds the positions last appended to At, n of them, to the mask, and their values to
// the vector.
func (c *Chooser) emit(row []byte, first, n int) {
	v := c.vector
	size := v.Kind.Size()
	at := v.At[len(v.At)-n:]
	for _, p := range at {
		v.Mask.Set(int(p))
		i := (int(p) - first) * size
		v.Values = append(v.Values, row[i:i+size]...)
	}
}

// opens reports whether a row whose largest magnitude is most is open, and notes it if so.
// A row that is not finite goes whole, but for zeros: leaving anything out could hide a
// NaN.
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

// isZero reports whether all bits are clear: a negative zero is sent, like any other
// number.
func isZero(number []byte) bool {
	for _, b := range number {
		if b != 0 {
			return false
		}
	}
	return true
}

// infinity returns the bits of an infinity's magnitude; those of finite numbers are below.
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

// selected returns the k-th largest magnitude of a row, and the largest.
func (c *Chooser) selected(row []byte, d, k int) (tau, most uint64) {
	kind := c.vector.Kind
	c.keys = c.keys[:0]
	for i := range d {
		m := vector.Magnitude(kind, row, i)
		c.keys = append(c.keys, m)
		most = max(most, m)
	}
	c.spares = slices.Grow(c.spares[:0], d)[:d]
	return largest(c.keys, c.spares, k), most
}

// fromMagnitude returns the number that a finite magnitude's bits stand for.
func fromMagnitude(kind element.Kind, m uint64) float64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], m)
	return kind.At(b[:], 0)
}
