package counts

import "math"

// eachOf says what n keys of a leaf get, each something of its own: the key at places[i],
// or i where places is nil, gets sums[at[i]], or sums[i] where at is nil.
type eachOf struct {
	sums       [][Planes]uint32
	places, at []int32
	n          int
}

// addEach adds its share to each key of a leaf of n, and returns the bytes by which the
// plane grew.
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
		if done < e.n { // it has no cells, too narrow ones, or its unit does not fit
			units, more := p.units(e.amount(done, which), n)
			grown += more + p.widen(p.at(e.place(done))/max(p.unit, 1)+units, n)
		}
	}
	return grown
}

func (e *eachOf) amount(i, which int) uint64 {
	if e.at != nil {
		i = int(e.at[i])
	}
	return uint64(e.sums[i][which])
}

func (e *eachOf) place(i int) int {
	if e.places != nil {
		return int(e.places[i])
	}
	return i
}

// addSums adds amounts, which are multiples of unit, to c from number done on, and
// returns the number of the first that is none, or does not fit; e.n as a rule.
func addSums[T cell](c []T, e *eachOf, done, which int, unit, limit uint64) int {
	for ; done < e.n; done++ {
		amount := e.amount(done, which)
		if amount == 0 {
			continue
		}
		units := amount
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
