package migrate

import (
	"slices"
	"strings"
)

// search visits every world that can be reached from the first, in the order of
// how many actions lead there.
type search struct {
	*model
	known map[digest]uint32
	next  backlog
	// Where the actions of each world lead, world after world: to is all of
	// them, and those of a world begin at from.
	from []uint32
	to   []uint32
	ends []uint32
	over map[end]bool // what is left at those
}

// backlog is worlds to be looked at, first in, first out, in blocks, of which
// those done with are let go.
type backlog struct {
	blocks [][]world
	first  int // in the first block
}

const backlogBlock = 4096

func (b *backlog) add(w *world) {
	if n := len(b.blocks); n == 0 || len(b.blocks[n-1]) == backlogBlock {
		b.blocks = append(b.blocks, make([]world, 0, backlogBlock))
	}
	last := &b.blocks[len(b.blocks)-1]
	*last = append(*last, *w)
}

func (b *backlog) take() (w world, ok bool) {
	if len(b.blocks) == 0 || b.first == len(b.blocks[0]) {
		return w, false
	}
	w = b.blocks[0][b.first]
	if b.first++; b.first == backlogBlock {
		b.blocks, b.first = b.blocks[1:], 0
	}
	return w, true
}

// found is what a search has found.
type found struct {
	worlds  int
	whole   bool // there are no more
	ends    map[end]bool
	failure string // what is wrong, and what leads there; the search ends with it
}

// explore looks for a world in which something is wrong, or from which the end
// cannot be reached, up to so many.
func explore(m *model, first world, most int) found {
	s := &search{model: m, known: map[digest]uint32{}, over: map[end]bool{}}
	m.first = first.Budget
	s.visit(&first)
	var all []action
	for {
		w, ok := s.next.take()
		if !ok {
			break
		}
		number := uint32(len(s.from))
		s.from = append(s.from, uint32(len(s.to)))
		done, failure := m.done(&w)
		if failure != "" {
			return found{worlds: len(s.known), failure: failure + ", after\n" + s.trace(first, number, nil)}
		}
		if done && w.calm() {
			s.ends = append(s.ends, number)
			s.over[m.end(&w)] = true
		}
		all = m.actions(&w, all[:0])
		for _, a := range all {
			next, failure, ok := m.after(&w, a)
			if failure != "" {
				return found{worlds: len(s.known), failure: failure + ", after\n" + s.trace(first, number, &a)}
			}
			if ok {
				s.to = append(s.to, s.visit(&next))
			}
		}
		if len(s.known) > most {
			return found{worlds: len(s.known)}
		}
	}
	f := found{worlds: len(s.known), whole: true, ends: s.over}
	if at, stuck := s.stuck(); stuck {
		f.failure = "the job cannot end any more, after\n" + s.trace(first, at, nil)
	}
	return f
}

// visit returns a world's number.
func (s *search) visit(w *world) uint32 {
	d := w.digest()
	n, ok := s.known[d]
	if !ok {
		n = uint32(len(s.known))
		s.known[d] = n
		s.next.add(w)
	}
	return n
}

func (s *search) follows(n uint32) []uint32 {
	if int(n)+1 < len(s.from) {
		return s.to[s.from[n]:s.from[n+1]]
	}
	return s.to[s.from[n]:]
}

// stuck returns the first world from which no end can be reached.
func (s *search) stuck() (at uint32, ok bool) {
	reaches := make([]bool, len(s.known))
	for _, n := range s.ends {
		reaches[n] = true
	}
	for changed := true; changed; { // most lead to later ones
		changed = false
		for n := len(s.from) - 1; n >= 0; n-- {
			if !reaches[n] && slices.ContainsFunc(s.follows(uint32(n)), func(to uint32) bool { return reaches[to] }) {
				reaches[n], changed = true, true
			}
		}
	}
	n := slices.Index(reaches, false)
	return uint32(n), n >= 0
}

// trace names the actions that lead to a world, and the last one.
func (s *search) trace(w world, at uint32, last *action) string {
	path := []uint32{at}
	for at != 0 { // a world was reached first from the earliest that leads to it
		for n := range at {
			if slices.Contains(s.follows(n), at) {
				path = append(path, n)
				at = n
				break
			}
		}
	}
	var taken []string
	for _, n := range slices.Backward(path[:len(path)-1]) {
		for _, a := range s.actions(&w, nil) {
			next, _, ok := s.after(&w, a)
			if ok && s.known[next.digest()] == n {
				taken = append(taken, "  "+a.String())
				w = next
				break
			}
		}
	}
	if last != nil {
		taken = append(taken, "  "+last.String())
	}
	return strings.Join(taken, "\n")
}
