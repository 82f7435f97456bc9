package best

// A settler decides which proposals of a batch the limits of the blocks allow. If a block is full,
// a vertex waits for one that wants to go the other way, with which it changes places, or for one
// that leaves. What still waits at the end of the batch is dropped.
type settler struct {
	k int
	// By block, its weight with the moves settled so far.
	size []int64
	// By from*k+to, the proposals that wait for room.
	waiting [][]proposal
	moves   []proposal
}

func newSettler(k int) settler {
	return settler{k: k, size: make([]int64, k), waiting: make([][]proposal, k*k)}
}

// startBatch clears the settler for a new batch. size are the blocks' weights.
func (s *settler) startBatch(size []int64) {
	copy(s.size, size)
	s.moves = s.moves[:0]
	for i := range s.waiting {
		s.waiting[i] = s.waiting[i][:0]
	}
}

// settleAll decides on all proposals of a batch, in the order of members and vertices, and adds up
// which blocks they want to leave and enter.
func (a *annealer[T]) settleAll() {
	a.settler.startBatch(a.state.size)
	for i := range a.members {
		m := &a.members[i]
		a.work += m.work
		m.work = 0
		for _, p := range m.proposals {
			w := float64(a.h.weight[p.v])
			a.out[a.block[p.v]] += w
			a.in[p.to] += w
			a.settle(p)
		}
	}
}

// settle decides on p: it is accepted, alone or in exchange for one that waits, or it waits.
func (a *annealer[T]) settle(p proposal) {
	s := &a.settler
	from, to := int(a.block[p.v]), int(p.to)
	if more := int64(p.fresh) + a.h.lone[p.v]; a.theta > 0 && more > 0 &&
		a.cost.used[to]+more > a.theta && a.cost.used[from] <= a.theta {
		return // no block that meets theta is relieved at the cost of one that then would not
	}
	if !a.stays.allows(p.v, from) {
		return
	}
	w := int64(a.h.weight[p.v])
	if s.size[to]+w <= a.limits.size[to] {
		a.accept(p, from, w)
		// The vertex has left room behind.
		a.admitWaiting(from)
		return
	}
	back := s.waiting[to*s.k+from]
	if n := len(back); n > 0 {
		q := back[n-1]
		wq := int64(a.h.weight[q.v])
		if s.size[to]+w-wq <= a.limits.size[to] && s.size[from]+wq-w <= a.limits.size[from] && a.allowBoth(p, from, q, to) {
			s.waiting[to*s.k+from] = back[:n-1]
			a.accept(p, from, w)
			a.accept(q, to, wq)
			return
		}
	}
	s.waiting[from*s.k+to] = append(s.waiting[from*s.k+to], p)
}

// allowBoth reports whether the bound on vertices away from their earlier block allows p and q to
// change places.
func (a *annealer[T]) allowBoth(p proposal, from int, q proposal, to int) bool {
	if a.stays == nil {
		return true
	}
	before := a.stays.away
	a.stays.note(p.v, from, p.to)
	a.stays.note(q.v, to, q.to)
	after := a.stays.away
	a.stays.away = before
	return after <= max(before, a.stays.most)
}

// accept adds p to the moves and updates the sizes.
func (a *annealer[T]) accept(p proposal, from int, w int64) {
	s := &a.settler
	a.stays.note(p.v, from, p.to)
	s.size[from] -= w
	s.size[p.to] += w
	s.moves = append(s.moves, p)
}

// admitWaiting admits a vertex that waits for the room that block b has now, then one that waits
// for the room which that one leaves, and so on.
func (a *annealer[T]) admitWaiting(b int) {
	s := &a.settler
	for again := true; again; {
		again = false
		for i := range s.k {
			from := (b + 1 + i) % s.k // not always the same first
			list := s.waiting[from*s.k+b]
			if len(list) == 0 {
				continue
			}
			q := list[len(list)-1]
			w := int64(a.h.weight[q.v])
			if s.size[b]+w > a.limits.size[b] || !a.stays.allows(q.v, from) {
				continue
			}
			s.waiting[from*s.k+b] = list[:len(list)-1]
			a.accept(q, from, w)
			b, again = from, true
			break
		}
	}
}
