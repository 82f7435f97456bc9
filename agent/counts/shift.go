package counts

const (
	// shiftUses is the least number of a worker's uses from which its shift is judged. Fewer
	// would let chance decide.
	shiftUses = 256
	// shiftBits is the size of the set of known keys. The set is a Bloom filter with one hash:
	// some unknown keys look known, so shifts are noticed a little later, never wrongly.
	shiftBits = 1 << 20
	// restless is the usual share of unknown keys above which a shift could not stand out.
	restless = 0.9
)

// A shift notices when workers turn to keys that the previous window does not have. How much is
// unusual is learned from earlier windows: a worker of whose uses half are always of new keys
// does not shift. After a shift was noticed, nothing more is judged until the next window.
type shift struct {
	known   []uint64 // bitmap of the keys of the previous window; nil: there was none
	sample  sample   // the previous window's sample; other keys are not judged
	usual   float64  // usual fraction of uses of unknown keys, a moving average
	workers []novelty
	window  novelty  // of all workers since the window began
	noticed bool     // a shift was noticed in this window
	spelled []uint64 // scratch
}

// novelty counts uses since a worker was last judged.
type novelty struct {
	uses, fresh int // of sampled keys, and of unknown ones among them
	since       int // index in the window of the list with which the unknown keys began
}

// bit returns the place of a key in the bitmap.
func bit(key uint64) (word, mask uint64) {
	at := key * 0x9e3779b97f4a7c15 >> 44 // the highest 20 bits
	return at / 64, 1 << (at % 64)
}

// countKeys counts a list of keys, number list of the window. It reports whether the list's
// worker has just shifted, and with which list that began.
func (s *shift) countKeys(b *Batch, list int) (since int, shifted bool) {
	if s.known == nil || s.noticed {
		return 0, false
	}
	for b.Worker >= len(s.workers) {
		s.workers = append(s.workers, novelty{})
	}
	n := &s.workers[b.Worker]
	// Only keys in the previous window's sample: of others it is not known whether they were
	// used before.
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
	case 2*fresh < uses: // mostly known keys: a shift, if any, begins later
		n.since = list + 1
	case n.uses == 0:
		n.since = list
	}
	n.uses, n.fresh = n.uses+uses, n.fresh+fresh
	s.window.uses, s.window.fresh = s.window.uses+uses, s.window.fresh+fresh
	if n.uses < shiftUses {
		return 0, false
	}
	// A shift is more than half-way from the usual fraction to all keys being unknown.
	part := float64(n.fresh) / float64(n.uses)
	s.noticed = part > (1+s.usual)/2 && s.usual < restless
	if s.noticed {
		s.usual += (part - s.usual) / 4 // a job that shifts all the time is one for which that is usual
	}
	since = n.since
	*n = novelty{}
	return since, s.noticed
}

// taken starts over after a window with these keys and this sample was taken. A window without
// a shift contributes to the usual fraction.
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

// Shifted reports whether a worker has turned to other keys since the last window was taken, or
// uses have come and no window was taken yet. The agent then reports at once, since a plan that
// follows a shift early saves most.
func (j *Locality) Shifted() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.window != nil && (j.window.shift.noticed || j.window.shift.known == nil && len(j.window.uses) > 0)
}
