package values

import (
	"sort"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// DenseValues is from how many values on a key is a layer by itself. Keys of
// fewer are a layer together with others of their span and length.
const DenseValues = 512

// piece is a part of a message's values that one rule is for: those of one
// dense key, or of several keys that have width values each.
type piece struct {
	span     *span
	first    int // index of the first key
	keys     int
	from, to int // bytes in the values frame
	width    int // values of a key
	kind     element.Kind
	known    bool // kind is: the values are numbers that can be coded
}

func (p *piece) dense() bool { return p.width >= DenseValues }

// layout cuts a message's values into pieces. The slice is reused.
type layout struct {
	pieces []piece
}

// read cuts the values of m, and says what forbids it, if anything does: then
// the message passes as it is.
func (l *layout) read(m *pslite.Message, spans []span) Reason {
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
		return l.readLens(keys, lens, vals, unit, spans)
	}
	if len(vals.Bytes)%n != 0 || len(vals.Bytes)/n%unit != 0 {
		return ReasonShape
	}
	size := len(vals.Bytes) / n
	at := 0
	for i := range spans {
		s := &spans[i]
		end := n
		if last := s.Last; at < n && keys.At(n-1) > last {
			end = at + sort.Search(n-at, func(k int) bool { return keys.At(at+k) > last })
		}
		if end > at {
			if r := l.add(s, vals.Type, at, end-at, at*size, size); r != "" {
				return r
			}
		}
		if at = end; at == n {
			break
		}
	}
	return ""
}

// readLens cuts the values of keys with lengths of their own, which the
// message's check has compared with the values.
func (l *layout) readLens(keys pslite.Keys, lens pslite.Lens, vals pslite.Values, unit int, spans []span) Reason {
	from, s := 0, 0
	for i := range keys.Len() {
		for keys.At(i) > spans[s].Last {
			s++
		}
		n := int(lens.At(i))
		if n < 0 || from+n*unit > len(vals.Bytes) {
			return ReasonShape
		}
		size := n * unit
		if last := len(l.pieces) - 1; last >= 0 && l.pieces[last].span == &spans[s] && l.pieces[last].extends(size) {
			l.pieces[last].keys++
			l.pieces[last].to += size
		} else if r := l.add(&spans[s], vals.Type, i, 1, from, size); r != "" {
			return r
		}
		from += size
	}
	if from != len(vals.Bytes) {
		return ReasonShape
	}
	return ""
}

// extends reports whether a key of size bytes more can be part of the piece.
func (p *piece) extends(size int) bool {
	return !p.dense() && (p.to-p.from)/p.keys == size
}

// add adds pieces for keys of size bytes each.
func (l *layout) add(s *span, t pslite.DataType, first, keys, from, size int) Reason {
	p := piece{span: s, first: first, keys: keys, from: from, to: from + keys*size}
	switch {
	case t == pslite.Float:
		p.kind, p.known = element.Float32, true
	case t == pslite.Double:
		p.kind, p.known = element.Float64, true
	case t == pslite.Char && s.rule != nil && s.rule.Elements != "":
		kind, err := parseElements(s.rule.Elements)
		p.kind, p.known = kind, err == nil
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

// parseElements is element.Parse, for a rule's Elements.
func parseElements(name string) (element.Kind, error) { return element.Parse(name) }

// any reports whether the rule of any piece is such.
func (l *layout) any(such func(*Rule) bool) bool {
	for i := range l.pieces {
		if such(l.pieces[i].rule()) {
			return true
		}
	}
	return false
}
