package best

// stays keeps vertices near where an earlier assignment has them.
//
// Invariant: away is the number of vertices v with was[v] >= 0 that are not, or
// by what is settled will not be, in block was[v].
type stays struct {
	was   []int32 // block of each vertex before, or -1
	price float32 // of being elsewhere, in weight of nets
	away  int     // vertices elsewhere
	most  int     // that may be
	hold  bool    // none of those that were somewhere moves
}

// newStays counts who is elsewhere already.
func newStays(was, block []int32, most int) *stays {
	s := &stays{was: was, most: most}
	for v, b := range was {
		if b >= 0 && b != block[v] {
			s.away++
		}
	}
	return s
}

// holds reports whether vertex v must not move at all; s may be nil.
func (s *stays) holds(v int) bool { return s != nil && s.hold && s.was[v] >= 0 }

// allows reports whether vertex v may leave block from; s may be nil.
func (s *stays) allows(v int32, from int) bool {
	return s == nil || s.was[v] != int32(from) || s.away < s.most
}

// note tells of a move; s may be nil.
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
