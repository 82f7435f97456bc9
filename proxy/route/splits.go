package route

import "slices"

// plain reports whether all keys of a request belong to the server that the worker chose, so that
// it needs no split. A request without keys does too.
func plain(id request, owners []int32) bool {
	return len(owners) == 0 || len(owners) == 1 && owners[0] == id.server
}

// addSplit indexes a split by the timestamps of its parts; s may be nil.
func (w *worker) addSplit(s *split) {
	if s == nil {
		return
	}
	w.inFlight++
	for own := s.own; own < s.own+s.layers(); own++ {
		w.splits[own] = append(w.splits[own], s)
	}
}

// removeSplit removes a split from that index; s may be nil.
func (w *worker) removeSplit(s *split) {
	if s == nil {
		return
	}
	w.inFlight--
	for own := s.own; own < s.own+s.layers(); own++ {
		w.splits[own] = slices.DeleteFunc(w.splits[own], func(t *split) bool { return t == s })
		if len(w.splits[own]) == 0 {
			delete(w.splits, own)
		}
	}
}
