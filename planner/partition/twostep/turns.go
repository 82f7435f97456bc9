package twostep

// A turns finds the machine whose turn it is: the least by less, the first among equals. It is a
// tournament tree in which the lesser of two goes up, so only the nodes above a machine that has
// changed are compared again.
type turns struct {
	less   func(i, j int) bool
	leaves int     // a power of 2
	winner []int32 // node -> the least machine below it, or -1; the root is 1
}

// newTurns returns the tree of that many machines. less must be a strict order; it is called again
// after moved.
func newTurns(machines int, less func(i, j int) bool) *turns {
	t := &turns{less: less, leaves: 1}
	for t.leaves < machines {
		t.leaves *= 2
	}
	t.winner = make([]int32, 2*t.leaves)
	for i := range t.leaves {
		t.winner[t.leaves+i] = -1
		if i < machines {
			t.winner[t.leaves+i] = int32(i)
		}
	}
	for node := t.leaves - 1; node > 0; node-- {
		t.compare(node)
	}
	return t
}

// compare sets a node from its two children.
func (t *turns) compare(node int) {
	left, right := t.winner[2*node], t.winner[2*node+1]
	if left < 0 || right >= 0 && t.less(int(right), int(left)) {
		left = right
	}
	t.winner[node] = left
}

// first returns the machine in turn, or -1 if all have left.
func (t *turns) first() int { return int(t.winner[1]) }

// moved updates the tree after machine i has changed.
func (t *turns) moved(i int) {
	for node := (t.leaves + i) / 2; node > 0; node /= 2 {
		t.compare(node)
	}
}

// leave removes machine i.
func (t *turns) leave(i int) {
	t.winner[t.leaves+i] = -1
	t.moved(i)
}
