package values

// roles records, for keys by which activations are exchanged through a server, on
// which side of the exchange a worker is. A worker that pushed a key before it ever
// pulled it has the activations, and pulls their gradients; with a key that it pulled
// first it is the other way round. The values of the maps are true for keys that were
// pushed first.
//
// There are two generations, so that memory is bounded without a list of uses: when
// now is full it becomes before, and keys of before that were not used since are
// forgotten. A forgotten key gets a new role by its next use.
type roles struct{ now, before map[uint64]bool }

const (
	// mostRoles is the size of a generation. So many keys at least are known once that
	// many were seen.
	mostRoles = 1 << 17
	// roleBytes is what a key costs.
	roleBytes = 40
)

// note records that a key is pushed or pulled, and returns whether it was pushed first.
// known is false if there is no memory to record it.
func (r *roles) note(key uint64, push bool, b *budget) (pushed, known bool) {
	if pushed, known = r.now[key]; known {
		return pushed, true
	}
	// Looked up in the older generation, the key enters the newer one, and so stays
	// known as long as it is used.
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

// clear forgets everything.
func (r *roles) clear(b *budget) {
	b.give((len(r.now) + len(r.before)) * roleBytes)
	r.now, r.before = nil, nil
}
