package counts

import "math"

// eachOf are amounts that differ by key, for n keys of a leaf: the key at places[i], or at i if
// places is nil, gets sums[at[i]], or sums[i] if at is nil.
type eachOf struct {
	sums       [][Planes]uint32
	places, at []int32
	n          int
}

// addEach adds amount number which of each key to the plane of a leaf of n keys, and returns
// the bytes by which the plane grew. The loop over the keys is in addSums, compiled for each
// cell width; it returns here only when a key's amount does not fit, which happens a few times
// in a plane's life.
func (p *plane) addEach(n int, e *eachOf, which int) (grown int) {
	for done := 0; done < e.n; {
		switch c := p.cells.(type) {
		case []uint8:
			done = addSums(c, e, done, which, p.unit, math.MaxUint8)
		case []uint16:
			done = addSums(c, e, done, which, p.unit, math.MaxUint16)
		case []uint32:
			done = addSums(c, e, done, which, p.unit, math.MaxUint32)
		case []uint64:
			done = addSums(c, e, done, which, p.unit, math.MaxUint64)
		default:
			for done < e.n && e.amount(done, which) == 0 {
				done++
			}
		}
		if done < e.n { // no cells yet, too narrow ones, or an amount that is no multiple of the unit
			units, more := p.units(e.amount(done, which), n)
			grown += more + p.widen(p.at(e.place(done))/max(p.unit, 1)+units, n)
		}
	}
	return grown
}

// amount returns amount number which of key number i.
func (e *eachOf) amount(i, which int) uint64 {
	if e.at != nil {
		i = int(e.at[i])
	}
	return uint64(e.sums[i][which])
}

// place returns the key's place in the leaf.
func (e *eachOf) place(i int) int {
	if e.places != nil {
		return int(e.places[i])
	}
	return i
}

// addSums adds amounts to the cells c, from number done on. It returns the number of the first
// amount that is no multiple of unit or overflows its cell, or e.n if there is none.
func addSums[T cell](c []T, e *eachOf, done, which int, unit, limit uint64) int {
	for ; done < e.n; done++ {
		amount := e.amount(done, which)
		if amount == 0 {
			continue
		}
		units := amount
		// A division for each key costs more than the rest of the loop; unit 1 is common.
		if unit != 1 {
			if unit == 0 {
				return done
			}
			if units = amount / unit; units*unit != amount {
				return done
			}
		}
		at := e.place(done)
		v := uint64(c[at])
		if units > limit || v > limit-units {
			return done
		}
		c[at] = T(v + units)
	}
	return done
}
