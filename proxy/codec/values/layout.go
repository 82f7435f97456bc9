package values

import (
	"slices"
	"sort"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
)

// DenseValues is the number of values from which on a key is a layer by itself. Keys
// with fewer form a layer together with the others of their span.
const DenseValues = 512

// piece is a part of a message's values to which one rule applies: those of one dense
// key, or of several keys that have fewer values. It refers to the message's keys by
// index and to its values by bytes, and is valid as long as the message.
type piece struct {
	span     *span
	first    int          // index of the first key
	keys     int          // how many
	from, to int          // bytes in the values frame
	width    int          // values of a key, where all have the same number
	lens     pslite.Lens  // otherwise: of the message's keys, in units of its values
	unit     int          // bytes
	kind     element.Kind // valid if known
	known    bool         // the values are numbers that can be coded
}

func (p *piece) dense() bool { return p.lens == nil && p.width >= DenseValues }

// values is how many values all keys of the piece have.
func (p *piece) values() int { return (p.to - p.from) / max(1, p.kind.Size()) }

// widthOf is how many values the piece's key number i has.
func (p *piece) widthOf(i int) int {
	if p.lens == nil {
		return p.width
	}
	return int(p.lens.At(p.first+i)) * p.unit / p.kind.Size()
}

// layout cuts a message's values into pieces. Its slice is reused.
type layout struct {
	pieces []piece
}

// readShape cuts the values of m into pieces, by spans, which cover all keys. If that
// is impossible it returns the reason, and the message passes unchanged. It relies on
// nothing but the message's own check: values divide by keys, or lengths add up.
func (l *layout) readShape(m *pslite.Message, spans []span) Reason {
	l.pieces = l.pieces[:0]
	keys, vals := m.Keys(), m.Values()
	n := keys.Len()
	if n == 0 || len(vals.Bytes) == 0 {
		return ReasonEmpty
	}
	if len(m.Meta.DataTypes) < 2 {
		return ReasonType
	}
	unit := vals.Type.Size()
	if lens := m.Lens(); lens != nil {
		return l.readLens(m, lens, vals, unit, spans)
	}
	if len(vals.Bytes)%n != 0 || len(vals.Bytes)/n%unit != 0 {
		return ReasonShape
	}
	size := len(vals.Bytes) / n
	at := 0
	for i := range spans {
		s := &spans[i]
		// Keys ascend, so those of a span are a run, whose end is found by bisection.
		end := n
		if last := s.Last; at < n && keys.At(n-1) > last {
			end = at + sort.Search(n-at, func(k int) bool { return keys.At(at+k) > last })
		}
		if end > at {
			if r := l.addPieces(s, m, at, end-at, at*size, size); r != "" {
				return r
			}
		}
		if at = end; at == n {
			break
		}
	}
	return ""
}

// readLens cuts the values of keys with lengths of their own, which the message's check
// has compared with the values. Neighbouring keys of few values in one span become one
// piece.
func (l *layout) readLens(m *pslite.Message, lens pslite.Lens, vals pslite.Values, unit int, spans []span) Reason {
	keys, from, s := m.Keys(), 0, 0
	for i := range keys.Len() {
		for keys.At(i) > spans[s].Last {
			s++
		}
		n := int(lens.At(i))
		if n < 0 || from+n*unit > len(vals.Bytes) {
			return ReasonShape
		}
		size := n * unit
		last := len(l.pieces) - 1
		if r := l.addPieces(&spans[s], m, i, 1, from, size); r != "" {
			return r
		}
		if last >= 0 && l.pieces[last].join(&l.pieces[last+1], lens, unit) {
			l.pieces = l.pieces[:last+1]
		}
		from += size
	}
	if from != len(vals.Bytes) {
		return ReasonShape
	}
	// A piece of nothing but keys without values has nothing to code.
	l.pieces = slices.DeleteFunc(l.pieces, func(p piece) bool { return p.from == p.to })
	return ""
}

// join makes the following piece part of this one and reports whether the two can be
// one: keys of few values in one span. From the first key of another width on, widths
// are read from the message's lengths; p.width then says nothing.
func (p *piece) join(o *piece, lens pslite.Lens, unit int) bool {
	if p.span != o.span || p.dense() || o.dense() {
		return false
	}
	if p.width != o.width {
		p.lens, p.unit = lens, unit
	}
	p.keys++
	p.to = o.to
	return true
}

// addPieces adds pieces for keys of size bytes each: one for all of them, or one for
// each if they are dense. Values of an unknown type become one piece that is not
// known, whose bytes go as they are.
func (l *layout) addPieces(s *span, m *pslite.Message, first, keys, from, size int) Reason {
	p := piece{span: s, first: first, keys: keys, from: from, to: from + keys*size}
	switch t := m.Meta.DataTypes[1]; {
	case t == pslite.Float:
		p.kind, p.known = element.Float32, true
	case t == pslite.Double:
		p.kind, p.known = element.Float64, true
	// CHAR and OTHER frames may contain anything: a rule says what, unless the message's command
	// says something else.
	case (t == pslite.Char || t == pslite.Other) && s.rule != nil:
		p.kind, p.known = element.OfChars(s.rule.Elements, m.Meta.Head)
	}
	if p.known {
		if size%p.kind.Size() != 0 {
			return ReasonShape
		}
		p.width = size / p.kind.Size()
	}
	if p.width < DenseValues {
		l.pieces = append(l.pieces, p)
		return ""
	}
	for i := range keys {
		one := p
		one.first, one.keys = first+i, 1
		one.from = from + i*size
		one.to = one.from + size
		l.pieces = append(l.pieces, one)
	}
	return ""
}

// any reports whether such holds for the rule of any piece.
func (l *layout) any(such func(*Rule) bool) bool {
	for i := range l.pieces {
		if such(l.pieces[i].rule()) {
			return true
		}
	}
	return false
}
