package values

// marks remembers a bit for each of the keys that came last.
//
// There are two generations, so that memory is bounded without a list of uses: when now
// is full it becomes before, and keys of before that were not used since are forgotten.
type marks struct{ now, before map[uint64]bool }

const (
	// mostMarks is the size of a generation. So many keys at least are known once that
	// many were seen.
	mostMarks = 1 << 17
	// markBytes is what a key costs.
	markBytes = 40
)

// note returns the mark of a key, which it sets to mark if the key is not known. known is
// false if there is no memory to record it.
func (r *marks) note(key uint64, mark bool, b *budget) (marked, known bool) {
	if marked, known = r.now[key]; known {
		return marked, true
	}
	// Looked up in the older generation, the key enters the newer one, and so stays
	// known as long as it is used.
	if marked, known = r.before[key]; !known {
		marked = mark
	}
	if len(r.now) >= mostMarks {
		b.give(len(r.before) * markBytes)
		r.before, r.now = r.now, nil
	}
	if !b.reserve(markBytes) {
		return false, false
	}
	if r.now == nil {
		r.now = map[uint64]bool{}
	}
	r.now[key] = marked
	return marked, true
}

// knows reports whether a key is known.
func (r *marks) knows(key uint64) bool {
	if _, ok := r.now[key]; ok {
		return true
	}
	_, ok := r.before[key]
	return ok
}

// clear forgets everything.
func (r *marks) clear(b *budget) {
	b.give((len(r.now) + len(r.before)) * markBytes)
	r.now, r.before = nil, nil
}
