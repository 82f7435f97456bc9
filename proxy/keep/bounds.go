package keep

// maxBounds bounds the boundaries that are remembered. Beyond it every other one is dropped:
// fewer boundaries only mean that bytes stay in the queue for longer.
const maxBounds = 64

// bounds are the offsets in a stream at which messages end, ascending. The latest is always
// among them.
type bounds struct{ all []uint64 }

// addBoundary adds an offset; one that is not beyond the last is ignored.
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

// popUpTo returns the last boundary that is not beyond an offset, and drops it and those
// before; false where there is none.
func (b *bounds) popUpTo(most uint64) (at uint64, ok bool) {
	n := 0
	for n < len(b.all) && b.all[n] <= most {
		at, ok = b.all[n], true
		n++
	}
	b.all = b.all[:copy(b.all, b.all[n:])]
	return at, ok
}
