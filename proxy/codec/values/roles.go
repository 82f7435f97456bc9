package values

// roles says of keys by which activations are exchanged on which side of it a worker
// is: of those that it pushed before it ever pulled them, it has the activations, and
// pulls the gradients for them; of those that it pulled first it is the other way
// round. Of the oldest keys that is forgotten.
type roles struct{ now, before map[uint64]bool }

const (
	// mostRoles is of how many keys a stream knows at least, once it has seen so many.
	mostRoles = 1 << 17
	// roleBytes is what one costs.
	roleBytes = 40
)

// note notes that a key is pushed, or pulled, and returns whether it was pushed first.
// Without memory it is not known.
func (r *roles) note(key uint64, push bool, b *budget) (pushed, known bool) {
	if pushed, known = r.now[key]; known {
		return pushed, true
	}
	if pushed, known = r.before[key]; !known {
		pushed = push
	}
	if len(r.now) >= mostRoles {
		b.give(len(r.before) * roleBytes)
		r.before, r.now = r.now, nil
	}
	if !b.reserve(roleBytes) {
		return false, false
	}
	if r.now == nil {
		r.now = map[uint64]bool{}
	}
	r.now[key] = pushed
	return pushed, true
}

// clear forgets all.
func (r *roles) clear(b *budget) {
	b.give((len(r.now) + len(r.before)) * roleBytes)
	r.now, r.before = nil, nil
}
