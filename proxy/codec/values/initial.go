package values

import (
	"bytes"
	"sort"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// initials distinguishes initial values from gradients among the pushes of one app to one
// server. Initial values must arrive exactly: unlike a gradient they are not made up for
// later. A push of a key is taken for a gradient if the key was pulled before, a dense key
// after it was pushed, and if it is not the link's first push.
//
// All lossy codecs of pushes go by it. It lives as long as the link: after a reconnection,
// a kill or a takeover the pushes of each key go whole until the key is pulled again.
//
// Workers mostly push the list of keys that they have just pulled. So the last lists are
// compared as a whole, and keys are looked up one by one only if none is equal. A list
// that was pushed as it was pulled is not entered in pulled when another takes its place.
type initials struct {
	budget *budget
	began  bool // a push was seen
	lists  [4]pulledList
	next   int             // the list that the next pull replaces
	pulled marks           // keys that were pulled
	dense  map[uint64]bool // dense keys that were pushed, at most mostMarks; true: pulled since
	fresh  int             // how many of them were not pulled since
	whole  *[1 << 10]int32 // timestamps plus one of the last pushes that went whole, by their lower bits
	// Of the push at hand:
	first, listed bool // it is the first; its keys are those of a pull
	// repeats says that it went whole before. PS_RESEND may repeat initial values after
	// their keys were pulled.
	repeats bool
}

// pulledList is the keys of a pull, taken from the budget.
type pulledList struct {
	keys   []byte
	pushed bool // a push of exactly these keys came
}

const (
	mostInitials   = 64      // apps of a link; pushes of others go whole
	mostPulled     = 1 << 20 // keys of a list
	denseMarkBytes = 32      // what a dense key costs
)

// pull records that keys are pulled.
func (in *initials) pull(keys pslite.Keys) {
	for i := 0; i < keys.Len() && in.fresh > 0; i++ {
		if pulled, ok := in.dense[keys.At(i)]; ok && !pulled {
			in.dense[keys.At(i)] = true
			in.fresh--
		}
	}
	for i := range in.lists {
		if bytes.Equal(in.lists[i].keys, keys) {
			return
		}
	}
	if keys.Len() > mostPulled {
		in.enter(keys)
		return
	}
	l := &in.lists[in.next]
	in.next = (in.next + 1) % len(in.lists)
	if !l.pushed {
		in.enter(l.keys)
	}
	in.budget.give(len(l.keys))
	if l.keys, l.pushed = l.keys[:0], false; in.budget.reserve(len(keys)) {
		l.keys = append(l.keys, keys...)
	}
}

// enter marks keys as pulled, one by one.
func (in *initials) enter(keys pslite.Keys) {
	for i := range keys.Len() {
		if _, ok := in.pulled.note(keys.At(i), true, in.budget); !ok {
			return // their pushes go whole
		}
	}
}

// beginPush is called for each push before [initials.of] is for its pieces.
func (in *initials) beginPush(m *pslite.Message) {
	in.first, in.began = !in.began, true
	in.repeats = in.whole != nil && in.whole[in.slot(m)] == m.Meta.Timestamp+1
	in.listed = false
	for i := range in.lists {
		if l := &in.lists[i]; bytes.Equal(l.keys, m.Keys()) {
			in.listed, l.pushed = true, true
		}
	}
}

func (in *initials) slot(m *pslite.Message) int { return int(uint32(m.Meta.Timestamp)) % len(in.whole) }

// of reports whether some of a piece's values may be initial ones.
func (in *initials) of(m *pslite.Message, p *piece) (some bool) {
	keys := m.Keys()
	switch {
	case p.dense():
		for i := range p.keys {
			some = !in.pulledDense(keys.At(p.first+i)) || some
		}
	case in.first:
		some = true
	case !in.listed:
		for i := 0; i < p.keys && !some; i++ {
			some = !in.pulledKey(keys.At(p.first + i))
		}
	}
	if some && !in.repeats {
		if in.whole == nil {
			in.whole = new([1 << 10]int32)
		}
		in.whole[in.slot(m)] = m.Meta.Timestamp + 1
	}
	return some || in.repeats
}

// pulledDense reports whether a dense key was pulled after a push, and records that it is
// pushed.
func (in *initials) pulledDense(key uint64) bool {
	pulled, ok := in.dense[key]
	if ok || len(in.dense) >= mostMarks || !in.budget.reserve(denseMarkBytes) {
		return pulled
	}
	if in.dense == nil {
		in.dense = map[uint64]bool{}
	}
	in.dense[key] = false
	in.fresh++
	return false
}

// pulledKey reports whether a key of few values was pulled.
func (in *initials) pulledKey(key uint64) bool {
	if in.pulled.knows(key) {
		return true
	}
	for i := range in.lists {
		keys := pslite.Keys(in.lists[i].keys)
		at := sort.Search(keys.Len(), func(k int) bool { return keys.At(k) >= key })
		if at < keys.Len() && keys.At(at) == key {
			in.pulled.note(key, true, in.budget) // found faster the next time
			return true
		}
	}
	return false
}

// close returns all memory.
func (in *initials) close() {
	for i := range in.lists {
		in.budget.give(len(in.lists[i].keys))
	}
	in.budget.give(len(in.dense) * denseMarkBytes)
	in.pulled.clear(in.budget)
}

// altersPushes reports whether the rule may change the values of pushes that are not
// activations or their gradients.
func (r *Rule) altersPushes() bool {
	return r.Threshold > 0 || r.Slim != nil || r.Quantize > 0 || r.Wire != ""
}

// tellsGradients reports whether a rule applies only to pushes that are known to be
// gradients.
func (s *Sender) tellsGradients() bool {
	for i := range s.spans {
		if r := s.spans[i].rule; r != nil && r.altersPushes() && !r.Unpulled {
			return true
		}
	}
	return false
}

// initialsOf returns what is known of an app's keys; nil if no rule asks, or of too many
// apps.
func (s *Sender) initialsOf(app int32) *initials {
	in := s.initials[app]
	if in == nil && s.tells && len(s.initials) < mostInitials {
		in = &initials{budget: &s.codec.budget}
		s.initials[app] = in
	}
	return in
}

// initial reports whether a piece of the push at hand may have initial values, which a
// rule must leave as they are.
func (s *Sender) initial(p *piece, r *Rule) bool {
	if !r.altersPushes() || r.Unpulled {
		return false
	}
	in := s.pushing.initials
	return in == nil || in.of(s.message, p)
}

// notePull records that a request pulls keys: pushes of these are gradients.
func (s *Sender) notePull(m *pslite.Message) {
	if isOwn(m.Meta.Timestamp) || len(m.Data) == 0 {
		return
	}
	if in := s.initialsOf(m.Meta.AppID); in != nil && s.tells {
		in.pull(m.Keys())
	}
	if st := s.streams[[2]int32{m.Meta.AppID, m.Meta.CustomerID}]; st != nil {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.locate(m.Keys())
	}
}
