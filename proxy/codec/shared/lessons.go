package shared

// lessons remember of which subjects values were the same for several processes, so
// that keeping what never comes again costs next to nothing.
type lessons struct {
	known map[Subject]*lesson
	fresh int // subjects of which nothing was known, since values last came again
}

// lesson says for how many answers values are not kept.
type lesson struct {
	skip  int  // so many more
	wait  int  // how many it was after the last that did not come again
	again bool // the last did
}

const (
	maxLessons  = 4096
	fewestSkips = 8
	mostSkips   = 512
	// freshTries subjects of which nothing is known are tried in any case, and then one
	// in freshOneIn.
	freshTries = 1024
	freshOneIn = 64
)

// try reports whether values of a subject are to be kept.
func (l *lessons) try(subject Subject) bool {
	if k := l.known[subject]; k != nil {
		if k.skip > 0 {
			k.skip--
			return false
		}
		return true
	}
	l.fresh++
	return l.fresh <= freshTries || l.fresh%freshOneIn == 0
}

// learn takes in whether values that were kept came again.
func (l *lessons) learn(subject Subject, again bool) {
	k := l.known[subject]
	if k == nil {
		if l.known == nil || len(l.known) >= maxLessons {
			l.known = map[Subject]*lesson{}
		}
		k = &lesson{}
		l.known[subject] = k
	}
	if again {
		*k, l.fresh = lesson{again: true}, 0
		return
	}
	if k.again { // it may have been dropped before the others came
		k.again = false
		return
	}
	k.wait = min(max(fewestSkips, 2*k.wait), mostSkips)
	k.skip = k.wait
}
