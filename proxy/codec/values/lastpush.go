package values

import (
	"cmp"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// template is a push of the worker, in whose image own pushes are made.
type template struct {
	meta    pslite.Meta
	dialect pslite.Dialect
	lens    bool // it has lengths
	keys    int  // how many the largest push had
}

// learn keeps what a push looks like. A clone is made only when the form changes: this
// is done for every push.
func (st *stream) learn(m *pslite.Message, d pslite.Dialect) {
	if st.template == nil {
		st.template = &template{}
	}
	t := st.template
	if t.dialect != d || t.lens != (len(m.Data) > 2) || len(t.meta.DataTypes) == 0 {
		t.meta, t.dialect, t.lens = m.Meta.Clone(), d, len(m.Data) > 2
	}
	t.meta.Head, t.meta.Timestamp = m.Meta.Head, m.Meta.Timestamp
	t.keys = max(t.keys, m.Keys().Len())
}

// waiting is the residual of some keys that have width values each: the content of
// one push of the proxy's own.
type waiting struct {
	kind   element.Kind
	width  int
	keys   []uint64 // ascending
	values []byte
}

// push makes a message. Its lengths are in units of the message's own data type.
func (t *template) push(timestamp int32, w waiting) [][]byte {
	// Everything that the worker's pushes have in common is kept: app, customer,
	// head, types.
	m := t.meta
	m.Timestamp, m.Push, m.Pull, m.Request = timestamp, true, false, true
	data := [][]byte{pslite.AppendKeys(nil, w.keys), w.values}
	if t.lens {
		unit := m.DataTypes[1].Size()
		lens := make([]int32, len(w.keys))
		for i := range lens {
			lens[i] = int32(w.width * w.kind.Size() / unit)
		}
		data = append(data, pslite.AppendLens(nil, lens))
	}
	size := 0
	for _, d := range data {
		size += len(d)
	}
	m.DataSize = int32(size)
	return append([][]byte{m.Append(nil, t.dialect)}, data...)
}

// empty takes everything that waits out of the stream, in pieces of one push each, and
// forgets the layers. No piece has more keys than the worker's own pushes had: some
// servers take one key at a time, as MXNet's do. The caller holds st.mu.
func (st *stream) empty() (all []waiting) {
	var v sparse.Vector
	add := func(kind element.Kind, width int, keys []uint64, values []byte) {
		size := width * kind.Size()
		for len(keys) > 0 {
			n := max(1, min(len(keys), mostOwn/size, st.template.keys))
			all = append(all, waiting{kind, width, keys[:n], values[:n*size]})
			keys, values = keys[n:], values[n*size:]
		}
	}
	for key, l := range st.dense {
		if l.Flush(&v) {
			values := make([]byte, l.Len()*l.Kind().Size())
			v.Expand(values)
			add(l.Kind(), l.Len(), []uint64{key}, values)
		}
		st.dropDense(key)
	}
	for id, l := range st.narrow {
		if l.Flush(&v) {
			values := make([]byte, l.Len()*id.kind.Size())
			v.Expand(values)
			for width, w := range l.index.sorted(values, id.kind.Size()) {
				add(id.kind, width, w.keys, w.values)
			}
		}
		st.dropNarrow(id)
	}
	// Committed before anything is sent: what leaves the file now is gone, whether or
	// not it arrives.
	st.commit()
	return all
}

// sorted returns, by how many values of size bytes they have, the keys that have any
// value that is not zero, ascending, with their values. A push of the job has its keys
// in ascending order.
func (x *index) sorted(values []byte, size int) map[int]waiting {
	of := func(c cell) []byte { return values[int(c.place-1)*size : (int(c.place-1)+c.size())*size] }
	var used []cell
	for _, c := range x.cells {
		if c.place != 0 && slices.ContainsFunc(of(c), func(b byte) bool { return b != 0 }) {
			used = append(used, c)
		}
	}
	slices.SortFunc(used, func(a, b cell) int { return cmp.Compare(a.key, b.key) })
	all := map[int]waiting{}
	for _, c := range used {
		w := all[c.size()]
		w.keys, w.values = append(w.keys, c.key), append(w.values, of(c)...)
		all[c.size()] = w
	}
	return all
}
