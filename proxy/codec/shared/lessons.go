package shared

// lessons remember for which subjects values were the same for several processes, so that
// keeping values that never come again costs next to nothing. The Source's lock guards
// them.
type lessons struct {
	known map[Subject]*lesson
	fresh int // unknown subjects seen since values last came again
}

// lesson says for how many answers values of a subject are not kept.
type lesson struct {
	skip  int  // answers to skip from now on
	wait  int  // the last pause, in answers
	again bool // the values last kept came again
}

const (
	maxLessons  = 4096
	fewestSkips = 8
	mostSkips   = 512
	// freshTries unknown subjects are tried in any case, and then one in freshOneIn: a job
	// that uses other keys in each step would fill the memory for nothing.
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

// learn records whether values that were kept came again. After values that did not the
// pause doubles, from fewestSkips to mostSkips answers; the first failure after a success
// is forgiven.
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
