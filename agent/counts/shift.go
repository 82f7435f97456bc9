package counts

const (
	// shiftUses is of how many uses at least it is judged whether a worker's keys
	// are other ones than before.
	shiftUses = 256
	// shiftBits is how large the set of known keys is; it is a filter, which
	// takes some unknown keys for known ones.
	shiftBits = 1 << 20
	// restless is what part of unknown keys, as a rule, is too large for a shift to
	// stand out.
	restless = 0.9
)

// A shift notices when workers turn to other keys than they used in the window
// before. Earlier windows show the usual share: a worker of which half of the uses
// are of new keys, always, does not shift.
type shift struct {
	known   []uint64 // bits of the keys of the window before; nil: none yet
	sample  sample   // of which keys that window was: others are not judged
	usual   float64  // part of uses that are of unknown keys, as a rule
	workers []novelty
	window  novelty // of all uses since the window began
	noticed bool
	spelled []uint64 // scratch
}

// novelty counts a worker's uses since it was last judged.
type novelty struct {
	uses, fresh int
	since       int // list of the window with which they began
}

func bit(key uint64) (word, mask uint64) {
	at := key * 0x9e3779b97f4a7c15 >> 44 // the highest 20 bits
	return at / 64, 1 << (at % 64)
}

// countKeys counts a list of keys, the one of that number in the window, and reports
// whether its worker has just shifted, and with which list.
func (s *shift) countKeys(b *Batch, list int) (since int, shifted bool) {
	if s.known == nil || s.noticed {
		return 0, false
	}
	for b.Worker >= len(s.workers) {
		s.workers = append(s.workers, novelty{})
	}
	n := &s.workers[b.Worker]
	uses, fresh := 0, 0
	look := func(key uint64) {
		uses++
		if word, mask := bit(key); s.known[word]&mask == 0 {
			fresh++
		}
	}
	for _, key := range b.Keys {
		if s.sample.has(key) {
			look(key)
		}
	}
	s.spelled = s.sample.appendRun(s.spelled[:0], b.Run)
	for _, key := range s.spelled {
		look(key)
	}
	if uses == 0 {
		return 0, false
	}
	switch {
	case 2*fresh < uses: // before a shift
		n.since = list + 1
	case n.uses == 0:
		n.since = list
	}
	n.uses, n.fresh = n.uses+uses, n.fresh+fresh
	s.window.uses, s.window.fresh = s.window.uses+uses, s.window.fresh+fresh
	if n.uses < shiftUses {
		return 0, false
	}
	// More than half way from the usual share to all.
	part := float64(n.fresh) / float64(n.uses)
	s.noticed = part > (1+s.usual)/2 && s.usual < restless
	if s.noticed {
		s.usual += (part - s.usual) / 4 // where that is so again and again, it is usual
	}
	since = n.since
	*n = novelty{}
	return since, s.noticed
}

// taken starts over after a window with these keys, of that sample, was taken.
func (s *shift) taken(keys []uint64, of sample) {
	known := make([]uint64, shiftBits/64)
	for _, key := range keys {
		word, mask := bit(key)
		known[word] |= mask
	}
	if s.known != nil && !s.noticed && s.window.uses > 0 {
		s.usual += (float64(s.window.fresh)/float64(s.window.uses) - s.usual) / 2
	}
	*s = shift{known: known, sample: of, usual: s.usual, workers: s.workers[:0], spelled: s.spelled[:0]}
}

// Shifted reports whether a worker has turned to other keys since the last
// window was taken, or none was taken yet though there are uses.
func (j *Locality) Shifted() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.window != nil && (j.window.shift.noticed || j.window.shift.known == nil && len(j.window.uses) > 0)
}
