package values

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// keyBytes bounds the values that each end of a link remembers key by key, the index
// included.
const keyBytes = 64 << 20

// byKey is what one end of a link remembers of pulls' answers, key by key: the values that
// each key last had, zeros if it had none. So requests that name other keys each time, as
// those of mini-batches do, still have in common the keys that they have in common. Both
// ends remember the same, since both change their state only by the parts, in order. When
// there is no more room, or a key has another number of values than before, the sender has
// both forget everything: eviction key by key would need a list at both ends that agrees,
// too.
//
// left is limit less what tables take, by the cost that table computes, at both ends alike.
type byKey struct {
	limit, left int
	tables      map[element.Kind]*keyTable
	old         []byte // the remembered values of the piece at hand
	diff        sparse.Vector
}

// keyTable is the keys of one kind of number. A key's place in values is given by the
// index, counted from 1 in numbers.
type keyTable struct {
	index  *index
	values []byte
	places []uint32 // of the keys of the last piece, see index.locate
}

func newByKey(limit int) byKey {
	return byKey{limit: limit, left: limit, tables: map[element.Kind]*keyTable{}}
}

// forgetKeys is the flag that both ends forget everything before a part.
const forgetKeys byte = 1

// table makes room for a piece's keys if there is enough, and finds their places. With ok
// false nothing has changed.
func (b *byKey) table(p *piece, keys pslite.Keys) (t *keyTable, ok bool) {
	if t = b.tables[p.kind]; t == nil {
		t = &keyTable{index: newIndex()}
	}
	places, missing, values, same := t.index.locate(t.places[:0], keys, p)
	t.places = places
	cost := missing*cellBytes + values*p.kind.Size()
	// A key with another number of values than before cannot keep its place:
	// everything has to go.
	if !same || cost > b.left {
		return nil, false
	}
	b.tables[p.kind] = t
	if missing == 0 {
		return t, true
	}
	b.left -= cost
	for i := range p.keys {
		t.index.add(keys.At(p.first+i), p.width)
	}
	t.places, _, _, _ = t.index.locate(t.places[:0], keys, p)
	// New keys begin with zeros at both ends, so that differences from these are
	// their values.
	size := t.index.values * p.kind.Size()
	t.values = append(t.values, make([]byte, size-len(t.values))...)
	return t, true
}

// forget forgets everything.
func (b *byKey) forget() {
	clear(b.tables)
	b.left = b.limit
}

// load copies the remembered values of the last piece's keys to values, and store is the
// reverse.
func (t *keyTable) load(p *piece, values []byte) {
	size, each := p.width*p.kind.Size(), p.kind.Size()
	for i, place := range t.places {
		at := int(place-1) * each
		copy(values[i*size:(i+1)*size], t.values[at:at+size])
	}
}

func (t *keyTable) store(p *piece, values []byte) {
	size, each := p.width*p.kind.Size(), p.kind.Size()
	for i, place := range t.places {
		at := int(place-1) * each
		copy(t.values[at:at+size], values[i*size:(i+1)*size])
	}
}

// append appends the part of a piece whose keys have the same number of values each, and
// returns how many values go. With ok false nothing was appended: the piece is too large to
// be remembered.
func (b *byKey) append(dst []byte, p *piece, keys pslite.Keys, values []byte) (encoded []byte, sent int, ok bool) {
	var flags byte
	t, ok := b.table(p, keys)
	if !ok {
		if p.keys*cellBytes+len(values) > b.limit {
			return dst, 0, false
		}
		flags = forgetKeys
		b.forget()
		t, _ = b.table(p, keys) // there is room now
	}
	b.old = slices.Grow(b.old[:0], len(values))[:len(values)]
	t.load(p, b.old)
	b.diff.Reset(p.kind, p.values())
	vector.Differ(p.kind, b.old, values, b.diff.Mask)
	b.diff.Gather(values)
	t.store(p, values)
	dst = append(dst, byte(partByKey), flags)
	for _, n := range []int{p.first, p.keys, p.width} {
		dst = binary.AppendUvarint(dst, uint64(n))
	}
	return b.diff.Append(dst), b.diff.Count(), true
}

// read reads the part of some of a message's keys into the beginning of out, and returns
// how many bytes that took and what follows in src. It checks everything before it changes
// the state, but an error ends the link in any case.
func (b *byKey) read(src []byte, keys pslite.Keys, out []byte) (n int, rest []byte, err error) {
	if len(src) == 0 || src[0]&^forgetKeys != 0 {
		return 0, nil, fmt.Errorf("%w: a part by keys with flags that are none", ErrCorrupt)
	}
	flags, src := src[0], src[1:]
	p := piece{}
	for _, v := range []*int{&p.first, &p.keys, &p.width} {
		if *v, src, err = uvarint(src); err != nil {
			return 0, nil, err
		}
	}
	if len(src) == 0 || !element.Kind(src[0]).Valid() {
		return 0, nil, fmt.Errorf("%w: a part by keys of no known kind of number", ErrCorrupt)
	}
	p.kind = element.Kind(src[0])
	// The part names keys by their place in the message, whose key list has been
	// decoded before.
	if p.first+p.keys > keys.Len() || p.keys == 0 || p.width == 0 || p.width >= DenseValues || p.keys*p.width > len(out)/p.kind.Size() {
		return 0, nil, fmt.Errorf("%w: %d values of each of %d keys from number %d on, where there are %d keys and %d bytes",
			ErrCorrupt, p.width, p.keys, p.first, keys.Len(), len(out))
	}
	n = p.keys * p.width * p.kind.Size()
	if rest, err = b.diff.Decode(src, p.keys*p.width); err != nil {
		return 0, nil, corrupt(err)
	}
	if b.diff.N != p.keys*p.width {
		return 0, nil, fmt.Errorf("%w: %d numbers of %d keys with %d each", ErrCorrupt, b.diff.N, p.keys, p.width)
	}
	if flags&forgetKeys != 0 {
		b.forget()
	}
	t, ok := b.table(&p, keys)
	if !ok {
		return 0, nil, fmt.Errorf("%w: more keys to remember than was agreed", ErrCorrupt)
	}
	t.load(&p, out)
	b.diff.Merge(out[:n])
	t.store(&p, out)
	return n, rest, nil
}

// lately is the names of the lists of keys that came last, in a ring.
type lately struct {
	names [64]uint64
	next  int
}

// again reports whether a name came lately, and records it.
func (l *lately) again(name uint64) bool {
	if slices.Contains(l.names[:], name) {
		return true
	}
	l.names[l.next] = name
	l.next = (l.next + 1) % len(l.names)
	return false
}
