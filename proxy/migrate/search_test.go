package migrate

import (
	"slices"
	"strings"
)

// search visits the worlds that can be reached from the first, budget by budget:
// what goes wrong, and a move, only ever takes from it, so that the worlds of a
// budget lead to each other and to those of smaller ones.
//
// A world is not visited where the same one was with a budget that is larger in
// nothing less: whatever can happen to it can happen to that one too. (Where the
// reduction is off it is visited nevertheless.)
type search struct {
	*model
	budgets []budget // in descending order, so that larger ones come first
	covers  []uint64 // of each budget: those that are as large, itself aside
	begun   []backlog
	known   visited
	// How each world was reached first: from which, by which of its actions.
	parents []uint32
	actions []uint8
	over    map[end]bool // the worlds at the ends

	all []action
}

// found is what a search has found.
type found struct {
	worlds  int
	whole   bool // there are no more
	ends    map[end]bool
	failure string // the fault and the events that lead there; the search ends with it
}

// explore looks for a world in which something is wrong, or from which the end
// cannot be reached though nothing more goes wrong, up to so many.
func explore(m *model, first world, most int) found {
	m.first = first.Budget
	s := &search{model: m, budgets: first.Budget.smaller(), over: map[end]bool{}}
	s.begun = make([]backlog, len(s.budgets))
	for _, b := range s.budgets {
		mask := uint64(0)
		for i, larger := range s.budgets {
			if !m.orders && larger != b && larger.covers(b) {
				mask |= 1 << i
			}
		}
		s.covers = append(s.covers, mask)
	}
	s.known.grow()
	s.begun[0].add(&reached{world: first})
	for i := range s.budgets {
		failure, at, last := s.layer(i, most)
		if failure != "" {
			return found{worlds: len(s.parents), failure: failure + ", after\n" + s.trace(first, at, last)}
		}
		if len(s.parents) > most {
			return found{worlds: len(s.parents)}
		}
	}
	return found{worlds: len(s.parents), whole: true, ends: s.over}
}

// layer visits the worlds of a budget.
func (s *search) layer(rank, most int) (failure string, at uint32, last *action) {
	l := layer{search: s, rank: rank, first: uint32(len(s.parents))}
	for r, ok := s.begun[rank].take(); ok; r, ok = s.begun[rank].take() {
		if e := s.known.slot(r.world.digest()); e.with&s.covers[rank] == 0 {
			l.number(e, &r)
		}
	}
	for {
		r, ok := l.next.take()
		if !ok || len(s.parents) > most {
			break
		}
		if failure, last := l.visit(&r.world); failure != "" {
			return failure, l.first + uint32(len(l.from)) - 1, last
		}
	}
	if at, stuck := l.stuck(); stuck && len(s.parents) <= most {
		return "the job cannot end any more", l.first + at, nil
	}
	return "", 0, nil
}

// layer is the worlds of one budget.
type layer struct {
	*search
	rank  int
	first uint32 // number of the first world
	next  backlog
	// Where the actions of each world lead in the layer, world after world: to is
	// all of them, and those of a world begin at from.
	from, to []uint32
	ends     []bool // the world is an end, or leads to what was visited before
}

// number gives a world the next number: it is visited when those before are.
func (l *layer) number(e *entry, r *reached) {
	e.with |= 1 << l.rank
	e.number = uint32(len(l.parents))
	l.parents = append(l.parents, r.parent)
	l.search.actions = append(l.search.actions, r.action)
	l.next.add(r)
}

// visit looks at a world, and notes where it leads.
func (l *layer) visit(w *world) (failure string, last *action) {
	at := uint32(len(l.from))
	l.from = append(l.from, uint32(len(l.to)))
	l.ends = append(l.ends, false)
	done, failure := l.done(w)
	if failure != "" {
		return failure, nil
	}
	if done && w.calm() {
		l.ends[at] = true
		l.over[l.end(w)] = true
	}
	l.all = l.model.actions(w, l.all[:0])
	for i, a := range l.all {
		next, failure, ok := l.after(w, a)
		switch {
		case failure != "":
			return failure, &a
		case ok:
			l.reach(at, &reached{world: next, parent: l.first + at, action: uint8(i)})
		}
	}
	return "", nil
}

func (l *layer) reach(from uint32, r *reached) {
	rank := l.rank
	if r.world.Budget != l.budgets[rank] {
		rank = slices.Index(l.budgets, r.world.Budget)
	}
	e := l.known.slot(r.world.digest())
	switch {
	case e.with&l.covers[rank] != 0:
		// Visited before. That it leads to an end is known where it has this
		// layer's budget, of which nothing is needed for that.
		if rank == l.rank {
			l.ends[from] = true
		}
	case rank != l.rank:
		if e.with&(1<<rank) == 0 {
			e.with |= 1 << rank
			l.begun[rank].add(r)
		}
	default:
		if e.with&(1<<rank) == 0 {
			l.number(e, r)
		}
		l.to = append(l.to, e.number-l.first)
	}
}

func (l *layer) follows(n int) []uint32 {
	if n+1 < len(l.from) {
		return l.to[l.from[n]:l.from[n+1]]
	}
	return l.to[l.from[n]:]
}

// stuck returns the first world from which no end can be reached with the budget
// as it is.
func (l *layer) stuck() (at uint32, ok bool) {
	for changed := true; changed; { // most lead to later ones
		changed = false
		for n := len(l.from) - 1; n >= 0; n-- {
			if !l.ends[n] && slices.ContainsFunc(l.follows(n), func(to uint32) bool { return l.ends[to] }) {
				l.ends[n], changed = true, true
			}
		}
	}
	n := slices.Index(l.ends, false)
	return uint32(n), n >= 0
}

// trace names the actions that lead to a world, and the last one.
func (s *search) trace(w world, at uint32, last *action) string {
	var path []uint32
	for ; at != 0; at = s.parents[at] {
		path = append(path, at)
	}
	var taken []string
	for _, n := range slices.Backward(path) {
		a := s.model.actions(&w, nil)[s.actions[n]]
		taken = append(taken, "  "+a.String())
		w, _, _ = s.after(&w, a)
	}
	if last != nil {
		taken = append(taken, "  "+last.String())
	}
	return strings.Join(taken, "\n")
}
