package counts

import (
	"math"

	"github.com/psidecar/psidecar/internal/page"
)

// Plane names one of the quantities that a table keeps per worker and key.
type Plane = page.Plane

// The planes. Bytes are those of the values alone, without keys and frames.
const (
	Pulls       = page.PullsPlane
	Pushes      = page.PushesPlane
	PulledBytes = page.PulledBytesPlane
	PushedBytes = page.PushedBytesPlane
	// Earlier holds, for a key that was promoted out of the sketch, the
	// sketch's estimate of its accesses before that moment.
	Earlier Plane = Planes

	// Planes is how many of the others there are, which are counted exactly in every
	// block.
	Planes    = page.Planes
	allPlanes = Planes + 1
)

// A plane holds one amount for each key of a leaf, in as little memory as the amounts allow: a
// single number while all are equal, otherwise cells of the smallest width that fits. Amounts
// are stored as multiples of unit, the greatest common divisor of all that were added, so that
// bytes of 4-byte values take no more room than their number.
type plane struct {
	unit  uint64 // 0 while nothing was added
	value uint64 // amount/unit of every key, if cells is nil
	cells any    // nil, or []uint8 to []uint64: one cell for each key, followed by zeros
}

// A cell is one of the widths that a plane's cells can have.
type cell interface {
	uint8 | uint16 | uint32 | uint64
}

// at returns the amount of key i.
func (p *plane) at(i int) uint64 {
	switch c := p.cells.(type) {
	case []uint8:
		return uint64(c[i]) * p.unit
	case []uint16:
		return uint64(c[i]) * p.unit
	case []uint32:
		return uint64(c[i]) * p.unit
	case []uint64:
		return c[i] * p.unit
	}
	return p.value * p.unit
}

// bytes returns the memory of the cells.
func (p *plane) bytes() int {
	const header = 24
	switch c := p.cells.(type) {
	case []uint8:
		return header + cap(c)
	case []uint16:
		return header + 2*cap(c)
	case []uint32:
		return header + 4*cap(c)
	case []uint64:
		return header + 8*cap(c)
	}
	return 0
}

// units returns the amount in units, after refining the unit if the amount is no multiple of
// it, and the bytes by which the plane grew by that.
func (p *plane) units(amount uint64, n int) (units uint64, grown int) {
	switch {
	case amount == p.unit:
		return 1, 0
	case p.unit == 0:
		p.unit = amount
		return 1, 0
	case amount%p.unit != 0:
		grown = p.refine(gcd(amount, p.unit), n)
	}
	return amount / p.unit, grown
}

// gcd returns the greatest common divisor of two numbers, of which b may be 0.
func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// refine changes the unit to one of its divisors, which multiplies the cells and may widen
// them. It returns the bytes by which the plane grew.
func (p *plane) refine(unit uint64, n int) int {
	factor := p.unit / unit
	p.unit = unit
	if p.cells == nil {
		p.value *= factor
		return 0
	}
	// The largest cell decides whether the scaled ones still fit their width.
	highest := uint64(0)
	for i := range n {
		highest = max(highest, p.at(i)/p.unit)
	}
	grown := p.widen(highest*factor, n)
	switch c := p.cells.(type) {
	case []uint8:
		scale(c, factor)
	case []uint16:
		scale(c, factor)
	case []uint32:
		scale(c, factor)
	case []uint64:
		scale(c, factor)
	}
	return grown
}

// scale multiplies all cells, which must have room for it.
func scale[T cell](c []T, factor uint64) {
	for i := range c {
		c[i] = T(uint64(c[i]) * factor)
	}
}

// addAll adds amount to all n keys and returns the bytes by which the plane grew.
func (p *plane) addAll(n int, amount uint64) int {
	if amount == 0 {
		return 0
	}
	units, grown := p.units(amount, n)
	if p.cells == nil {
		p.value += units
		return grown
	}
	for from := 0; from < n; {
		switch c := p.cells.(type) {
		case []uint8:
			from = addRange(c[:n], from, units, math.MaxUint8)
		case []uint16:
			from = addRange(c[:n], from, units, math.MaxUint16)
		case []uint32:
			from = addRange(c[:n], from, units, math.MaxUint32)
		case []uint64:
			from = addRange(c[:n], from, units, math.MaxUint64)
		}
		if from < n {
			grown += p.widen(p.at(from)/p.unit+units, n)
		}
	}
	return grown
}

// addRange adds units to c[from:] and returns the index of the first cell that would overflow,
// or len(c). limit is the largest value of a T.
func addRange[T cell](c []T, from int, units, limit uint64) int {
	for i := from; i < len(c); i++ {
		v := uint64(c[i])
		if v > limit-min(units, limit) || units > limit {
			return i
		}
		c[i] = T(v + units)
	}
	return len(c)
}

// addAt adds amount to the keys at the given places and returns the bytes by which the plane
// grew. n is the number of keys of the leaf.
func (p *plane) addAt(n int, places []int32, amount uint64) int {
	if amount == 0 || len(places) == 0 {
		return 0
	}
	units, grown := p.units(amount, n)
	grown += p.widen(p.value+units, n) // makes cells where there were none
	for len(places) > 0 {
		done := 0
		switch c := p.cells.(type) {
		case []uint8:
			done = addPlaces(c, places, units, math.MaxUint8)
		case []uint16:
			done = addPlaces(c, places, units, math.MaxUint16)
		case []uint32:
			done = addPlaces(c, places, units, math.MaxUint32)
		case []uint64:
			done = addPlaces(c, places, units, math.MaxUint64)
		}
		if places = places[done:]; len(places) > 0 {
			grown += p.widen(p.at(int(places[0]))/p.unit+units, n)
		}
	}
	return grown
}

// addPlaces adds units at the places and returns the number of places done before a cell would
// overflow.
func addPlaces[T cell](c []T, places []int32, units, limit uint64) int {
	if units > limit {
		return 0
	}
	for k, i := range places {
		v := uint64(c[i])
		if v > limit-units {
			return k
		}
		c[i] = T(v + units)
	}
	return len(places)
}

// widen makes sure that the plane has cells that can hold highest, and returns the bytes by
// which it grew. Cells never become narrower.
func (p *plane) widen(highest uint64, n int) int {
	if highest <= math.MaxUint8 && p.cells != nil {
		return 0
	}
	before := p.bytes()
	var wide any
	switch {
	case highest <= math.MaxUint8:
		wide = []uint8(nil)
	case highest <= math.MaxUint16:
		wide = []uint16(nil)
	case highest <= math.MaxUint32:
		wide = []uint32(nil)
	default:
		wide = []uint64(nil)
	}
	// Wide enough already. The first test above only avoids the switch in the usual case.
	if width(p.cells) >= width(wide) {
		return 0
	}
	p.cells, p.value = p.copied(wide, n, nil), 0
	return p.bytes() - before
}

// width returns the bytes of a cell, 0 without cells.
func width(cells any) int {
	switch cells.(type) {
	case []uint8:
		return 1
	case []uint16:
		return 2
	case []uint32:
		return 4
	case []uint64:
		return 8
	}
	return 0
}

// copied returns n cells of the type of like, filled from the plane: cell i from place from[i],
// or 0 if that is negative, or from place i if from is nil.
func (p *plane) copied(like any, n int, from []int32) any {
	switch like.(type) {
	case []uint8:
		return fill(make([]uint8, n), p, from)
	case []uint16:
		return fill(make([]uint16, n), p, from)
	case []uint32:
		return fill(make([]uint32, n), p, from)
	}
	return fill(make([]uint64, n), p, from)
}

// fill fills the cells to, as copied describes.
func fill[T cell](to []T, p *plane, from []int32) []T {
	if c, ok := p.cells.([]T); ok { // same width, the usual case: no switch for each cell
		for i := range to {
			if from == nil {
				to[i] = c[i]
			} else if from[i] >= 0 {
				to[i] = c[from[i]]
			}
		}
		return to
	}
	unit := max(p.unit, 1)
	for i := range to {
		if from == nil {
			to[i] = T(p.at(i) / unit)
		} else if from[i] >= 0 {
			to[i] = T(p.at(int(from[i])) / unit)
		}
	}
	return to
}

// arranged returns a copy of the plane for keys that were at the places from. fresh says that
// some are new, which is -1 in from.
func (p *plane) arranged(from []int32, fresh bool) plane {
	q := plane{unit: p.unit, value: p.value}
	switch {
	case p.cells != nil:
		q.cells, q.value = p.copied(p.cells, len(from), from), 0
		q.compact(len(from))
	case fresh && p.value != 0:
		wide := *p
		wide.widen(p.value, 0)
		q.cells, q.value = p.copied(wide.cells, len(from), from), 0
	}
	return q
}

// compact replaces the cells by a single number if all of them are equal.
func (p *plane) compact(n int) {
	if p.cells == nil || n == 0 {
		return
	}
	alike := false
	switch c := p.cells.(type) {
	case []uint8:
		alike = allAlike(c[:n])
	case []uint16:
		alike = allAlike(c[:n])
	case []uint32:
		alike = allAlike(c[:n])
	case []uint64:
		alike = allAlike(c[:n])
	}
	if alike {
		p.value, p.cells = p.at(0)/max(p.unit, 1), nil
	}
}

// allAlike reports whether all cells, of which there is at least one, are equal.
func allAlike[T cell](c []T) bool {
	for _, v := range c[1:] {
		if v != c[0] {
			return false
		}
	}
	return true
}
