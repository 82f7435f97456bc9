package route

import "slices"

// plain reports whether all keys of a request are with the server that it is for.
func plain(id request, owners []int32) bool {
	return len(owners) == 0 || len(owners) == 1 && owners[0] == id.server
}

// addSplit makes a split known by its parts' timestamps; nil is none.
func (w *worker) addSplit(s *split) {
	if s == nil {
		return
	}
	for own := s.own; own < s.own+s.layers(); own++ {
		w.splits[own] = append(w.splits[own], s)
	}
}

// removeSplit is the reverse.
func (w *worker) removeSplit(s *split) {
	if s == nil {
		return
	}
	for own := s.own; own < s.own+s.layers(); own++ {
		w.splits[own] = slices.DeleteFunc(w.splits[own], func(t *split) bool { return t == s })
		if len(w.splits[own]) == 0 {
			delete(w.splits, own)
		}
	}
}
