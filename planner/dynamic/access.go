package dynamic

// A turn is the machine that has used an item last, and how often in a row.
type turn struct {
	by int32
	// The uses of the present turn.
	uses float32
	// The mean length of earlier turns, with more weight on later ones; 0 if there was none.
	usual float32
	// 1 + the number of the plan before which the item was handed over.
	plan uint32
}

// Access implements Reactor. The item goes to the machine that uses it if the rest of the machine's
// turn would cost more remotely than the move. The length of a turn is known from earlier ones; an
// item that nobody else has used is taken for this machine's own. If the owner is likely to get it
// back, the cost of that counts too, with the owner's share of the uses as its probability.
func (l *Locality) Access(it *Items, item, machine int32, stay, move float64) bool {
	for len(l.turns) <= int(item) {
		l.turns = append(l.turns, turn{})
	}
	t, owner := &l.turns[item], it.Owner[item]
	switch {
	case t.uses == 0:
		t.by = machine
	case t.by != machine && t.usual == 0:
		t.usual, t.by, t.uses = t.uses, machine, 0
	case t.by != machine:
		t.usual, t.by, t.uses = t.usual+(t.uses-t.usual)/4, machine, 0
	}
	t.uses++
	if owner == machine || l.barred != nil && l.barred[machine] {
		return false
	}
	known := int(item) < len(l.owner)
	if t.usual > 0 {
		left := t.usual - t.uses + 1
		if left <= 0 { // longer than usual: expect as many uses again
			left = t.uses
		}
		back := 0.0
		if known {
			back = l.rates.part(item, owner)
		}
		if float64(max(left, 1))*stay <= move*(1+back) {
			return false
		}
	}
	if known {
		l.reown(item, machine)
	}
	t.plan = l.plans + 1
	return true
}

// handed reports whether the item was handed over since the last plan. Plan leaves such items
// alone.
func (l *Locality) handed(item int32) bool {
	return int(item) < len(l.turns) && l.turns[item].plan == l.plans
}
