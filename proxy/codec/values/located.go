package values

import (
	"bytes"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// located is a pull's list of keys, all of which have places in a layer. What it takes is
// counted by the stream's budget.
type located struct {
	layer  *narrowLayer // nil: none
	keys   []byte
	places []uint32
}

// mostLocated bounds the keys of a located list, and locatedBytes is what one costs.
const (
	mostLocated  = 1 << 16
	locatedBytes = 8 + 4
)

// locate remembers the places of a pull's keys for the push that follows, and reports
// whether all have places. It does so where one layer has all of the stream's keys, each
// with the same number of values.
func (s *stream) locate(keys pslite.Keys) bool {
	n := keys.Len()
	if len(s.dense) > 0 || len(s.narrow) != 1 || n == 0 || n > mostLocated {
		return false
	}
	for _, l := range s.narrow {
		if l.index.order == nil {
			return false
		}
		var missing int
		if s.places, missing, _, _ = l.index.locate(s.places[:0], keys, &piece{keys: n, width: l.index.width}); missing > 0 {
			return false
		}
		r := &s.located[s.oldest]
		s.budget.give(locatedBytes * len(r.places))
		r.layer = nil
		if r.places = r.places[:0]; !s.budget.reserve(locatedBytes * n) {
			break
		}
		*r = located{l, append(r.keys[:0], keys...), append(r.places, s.places...)}
		s.oldest = 1 - s.oldest
	}
	return true
}

// locatedPlaces returns the places of a piece's keys if they are those of one of the last
// pulls, and nil otherwise.
func (s *stream) locatedPlaces(l *narrowLayer, keys pslite.Keys, p *piece) []uint32 {
	if l.index.order == nil || p.lens != nil || p.width != l.index.width || p.keys != keys.Len() {
		return nil
	}
	for i := range s.located {
		if r := &s.located[i]; r.layer == l && bytes.Equal(r.keys, keys) {
			return r.places
		}
	}
	return nil
}

// forgetLocated forgets lists that were located in a layer, or in any if it is nil, and
// returns their memory.
func (s *stream) forgetLocated(l *narrowLayer) {
	for i := range s.located {
		if r := &s.located[i]; r.layer != nil && (l == nil || r.layer == l) {
			s.budget.give(locatedBytes * len(r.places))
			*r = located{}
		}
	}
}
