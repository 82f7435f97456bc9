package aggregate

import "github.com/psidecar/psidecar/internal/wire/pslite"

// known is what a connection has pushed so far. The first push of a key may carry its initial
// value, which servers treat differently from gradients: it must arrive as it was sent.
type known struct {
	lists map[about]bool
	keys  map[int32]map[uint64]bool // by app; a key alone is looked up in a third of the time
	count int                       // of keys of all apps
}

// Bounds on what is remembered of a connection. Once there are more lists all are forgotten, and
// keys decide; no more keys are added, and those that are missing count as new.
const (
	maxLists = 1 << 16
	maxKeys  = 1 << 17
)

func newKnown() known { return known{lists: map[about]bool{}, keys: map[int32]map[uint64]bool{}} }

// recognize reports whether a push can be summed: the list has been pushed before, or at least one
// in leastPart of its keys has. It sets isNew and stay of s. Of a list that was not pushed before,
// at most maxKeys keys are looked at: it costs time for each.
func (k *known) recognize(s *subject) bool {
	if k.lists[s.about()] {
		return true
	}
	s.isNew = true
	of := k.keys[s.app]
	if len(of) == 0 || len(s.keys) > 8*maxKeys || !s.ascends() {
		return false
	}
	keys, n := pslite.Keys(s.keys), 0
	stay := make([]bool, keys.Len())
	for i := range stay {
		if !of[keys.At(i)] {
			stay[i] = true
			n++
		}
	}
	if n > 0 {
		s.stay = stay
	}
	return leastPart*(len(stay)-n) >= len(stay)
}

// learn notes that a list, and its keys, have been pushed.
func (k *known) learn(s *subject) {
	if k.lists[s.about()] {
		return
	}
	if len(k.lists) >= maxLists {
		clear(k.lists)
	}
	k.lists[s.about()] = true
	keys := pslite.Keys(s.keys)
	for i := 0; i < keys.Len() && k.count < maxKeys; i++ {
		k.addKey(s.app, keys.At(i))
	}
}

// addKey notes that a key has been pushed.
func (k *known) addKey(app int32, key uint64) {
	of := k.keys[app]
	if of == nil {
		of = map[uint64]bool{}
		k.keys[app] = of
	}
	before := len(of)
	of[key] = true
	k.count += len(of) - before
}
