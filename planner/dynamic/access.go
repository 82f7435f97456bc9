package dynamic

// A turn is the machine that used an item last, and how often in a row.
type turn struct {
	by    int32
	uses  float32 // of the present turn
	usual float32 // mean of those before, the last ones count most; 0: none yet
	plan  uint32  // number of the plan before which the item was handed over, plus 1
}

// Access implements Reactor: an item goes to the machine that uses it, when it
// does so, if it will use it for as many times in a row that they would cost more
// from afar. How many that are is known from earlier turns; an item that nobody
// else has used is taken for this machine's own. If it then goes back to where it
// was, that costs the same once more; that is as likely as the owner's part of its
// uses is large.
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
		if left <= 0 { // it is a long one: as many again
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

// handed reports whether an item was handed over since the last plan.
func (l *Locality) handed(item int32) bool {
	return int(item) < len(l.turns) && l.turns[item].plan == l.plans
}
