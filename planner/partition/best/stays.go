package best

// A stays keeps vertices close to an earlier assignment, by a price for being elsewhere and by a
// bound on how many are. Methods for which a nil receiver makes sense accept one: without an
// earlier assignment everything is allowed.
//
// Invariant: away is the number of vertices v with was[v] >= 0 that are not in block was[v], or
// will not be once the settled moves are carried out.
type stays struct {
	// By vertex, its earlier block, or -1.
	was []int32
	// The price of being elsewhere, in weight of nets.
	price float32
	away  int // vertices elsewhere
	// The largest away that is allowed.
	most int
	// hold lets no vertex move that has an earlier block.
	hold bool
}

// newStays counts the vertices that are elsewhere already.
func newStays(was, block []int32, most int) *stays {
	s := &stays{was: was, most: most}
	for v, b := range was {
		if b >= 0 && b != block[v] {
			s.away++
		}
	}
	return s
}

// holds reports whether vertex v must not move at all.
func (s *stays) holds(v int) bool { return s != nil && s.hold && s.was[v] >= 0 }

// allows reports whether vertex v may leave block from.
func (s *stays) allows(v int32, from int) bool {
	return s == nil || s.was[v] != int32(from) || s.away < s.most
}

// note records a move.
func (s *stays) note(v int32, from int, to int32) {
	if s == nil || s.was[v] < 0 {
		return
	}
	switch s.was[v] {
	case int32(from):
		s.away++
	case to:
		s.away--
	}
}
