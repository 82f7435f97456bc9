package keep

// maxBounds is how many boundaries are remembered. Where there are more, every
// other one is forgotten: fewer only mean that bytes stay in the queue for longer.
const maxBounds = 64

// bounds are offsets in a stream at which a message ends, ascending, the last one
// always among them.
type bounds struct{ all []uint64 }

func (b *bounds) addBoundary(at uint64) {
	if n := len(b.all); n > 0 && b.all[n-1] >= at {
		return
	}
	if len(b.all) == maxBounds {
		for i := range maxBounds / 2 {
			b.all[i] = b.all[2*i+1]
		}
		b.all = b.all[:maxBounds/2]
	}
	b.all = append(b.all, at)
}

// popUpTo returns the last boundary that is not beyond an offset, and forgets it and
// those before; false where there is none.
func (b *bounds) popUpTo(most uint64) (at uint64, ok bool) {
	n := 0
	for n < len(b.all) && b.all[n] <= most {
		at, ok = b.all[n], true
		n++
	}
	b.all = b.all[:copy(b.all, b.all[n:])]
	return at, ok
}
