package values

import (
	"encoding/binary"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/ef21"
)

// pieceKeys is the state of a piece's keys as both ends see it. fresh and known cover
// all of the piece's keys: fresh counts keys, known counts numbers of the others.
type pieceKeys struct {
	fresh  int  // keys whose values come whole
	inLine bool // all are known and their values lie one behind the other, so that nothing is gathered
	from   int  // where these begin, in numbers
	known  int  // numbers of the keys that are known
}

// freshOnes has a bit for each key that is fresh; nil means that all are.
type freshOnes []byte

func (f freshOnes) has(i int) bool { return f == nil || f[i/8]>>(i%8)&1 != 0 }

// appendNarrow appends the part of keys of few values: which are fresh, the values of
// these, and the differences of all others as one vector, with one threshold for the span.
// With ok false nothing was appended.
func (c *copies) appendNarrow(head []byte, t *copyTable, number int, config ef21.Config, p *piece, keys pslite.Keys, values []byte) (all []byte, sent int, ok bool) {
	if !c.place(t, p, keys) {
		return head, 0, false
	}
	k := c.look(t, p)
	var flags byte
	switch {
	case k.fresh == p.keys:
		flags = copyWhole
	case k.fresh > 0:
		flags = copySome
	}
	if t.forget {
		flags |= copyForget
		t.forget = false
	}
	start, size := len(head), t.kind.Size()
	head = t.appendHead(head, number, flags)
	head = binary.AppendUvarint(head, uint64(p.first))
	head = binary.AppendUvarint(head, uint64(p.keys))
	head = appendWidths(head, p)
	if flags&copySome != 0 {
		head = append(head, c.fresh...)
	}
	before := len(head)
	fresh := freshOnes(c.fresh)
	if flags&copyWhole != 0 {
		fresh = nil
	}
	if k.fresh > 0 {
		head = c.appendFresh(head, t, p, values, fresh)
	}
	sent = (len(head) - before) / size
	if k.known > 0 {
		old, now := c.gather(t, &k, p, values, fresh)
		tau := t.tau[p.span.Range]
		if tau == nil {
			tau = &ef21.Threshold{}
			t.tau[p.span.Range] = tau
		}
		var some int
		if head, some, ok = c.encoder.Append(head, config, t.kind, tau, old, now); !ok {
			// The encoder may have changed the copies of the known keys, and those of the
			// fresh ones were not sent after all. All of the piece's keys leave the copy
			// and go whole; the flags that were not sent are set again.
			c.codec.counts.why(ReasonNotFinite)
			c.drop(keys[8*p.first : 8*(p.first+p.keys)])
			t.forget = t.forget || flags&copyForget != 0
			t.began = t.began && head[start+1]&copyBegins == 0
			return c.appendNarrow(head[:start], t, number, config, p, keys, values)
		}
		sent += some
		if !k.inLine {
			t.scatter(fresh, old)
		}
	}
	return c.check.append(head, start+1, t, t.narrow.values), sent, true
}

// place makes room for a piece's keys if there is enough, after having everything
// else of the table forgotten if need be, and reports whether the keys have places.
// What the receiver keeps until the next part with copyForget is counted in t.held,
// and is free for that part.
func (c *copies) place(t *copyTable, p *piece, keys pslite.Keys) bool {
	var missing, values int
	var same bool
	t.cells, missing, values, same = t.narrow.index.cellsOf(t.cells[:0], keys, p)
	if same && missing == 0 {
		return true
	}
	free := t.held // the next part frees it
	c.left += free
	if same && c.reserve(missing*cellBytes+values*t.kind.Size()) {
		t.held = 0
		t.placeKeys(p, keys)
		return true
	}
	all := p.keys*cellBytes + p.to - p.from
	// All narrow keys of the table are given up at once: eviction one by one would
	// need a list at the receiver.
	if before := t.bytes(); before > 0 && all <= c.left+before {
		free += before
		c.give(before)
		t.narrow, t.forget = &keyTable{index: newIndex()}, true
		if c.reserve(all) {
			t.held = 0
			t.placeKeys(p, keys)
			return true
		}
	}
	c.left -= free
	t.held = free
	return false
}

// placeKeys gives a place to those of a piece's keys that have none, and sets t.cells. It
// reports whether all have as many values as the piece says.
func (t *copyTable) placeKeys(p *piece, keys pslite.Keys) (same bool) {
	for i := range p.keys {
		t.narrow.index.add(keys.At(p.first+i), p.widthOf(i))
	}
	size := t.narrow.index.values * t.kind.Size()
	t.narrow.values = slices.Grow(t.narrow.values, size-len(t.narrow.values))[:size]
	t.cells, _, _, same = t.narrow.index.cellsOf(t.cells[:0], keys, p)
	return same
}

// bytes is what the narrow keys take, as both ends count it.
func (t *copyTable) bytes() int { return t.narrow.index.bytes() + len(t.narrow.values) }

// look finds out which of a piece's keys, those of t.cells, are fresh, and sets c.fresh.
func (c *copies) look(t *copyTable, p *piece) (k pieceKeys) {
	c.fresh = slices.Grow(c.fresh[:0], (p.keys+7)/8)[:(p.keys+7)/8]
	clear(c.fresh)
	k.inLine = true
	next := 0
	for i, n := range t.cells {
		cell := &t.narrow.index.cells[n]
		if !cell.pulled() {
			c.fresh[i/8] |= 1 << (i % 8)
			k.fresh++
			continue
		}
		from := int(cell.place) - 1
		if k.known == 0 {
			k.from = from
		} else if from != next {
			k.inLine = false
		}
		next = from + cell.size()
		k.known += cell.size()
	}
	k.inLine = k.inLine && k.fresh == 0
	return k
}

// appendFresh appends the values of fresh keys and makes them their copies. The keys
// are known from here on, even if the message is lost with its link: copies live no
// longer than the link.
func (c *copies) appendFresh(head []byte, t *copyTable, p *piece, values []byte, fresh freshOnes) []byte {
	at, size := 0, t.kind.Size()
	for i, number := range t.cells {
		n := p.widthOf(i) * size
		if fresh.has(i) {
			cell := &t.narrow.index.cells[number]
			cell.width |= pulledBit
			copy(t.narrow.values[(int(cell.place)-1)*size:], values[at:at+n])
			head = append(head, values[at:at+n]...)
		}
		at += n
	}
	return head
}

// gather returns the copy of the known keys' values, to be changed in place, and the
// message's values of the same keys. Unless the keys are in line, both are gathered, and
// scatter has to put the copy back.
func (c *copies) gather(t *copyTable, k *pieceKeys, p *piece, values []byte, fresh freshOnes) (old, now []byte) {
	size := t.kind.Size()
	if k.inLine {
		return t.narrow.values[k.from*size : (k.from+k.known)*size], values
	}
	c.old, c.now = c.old[:0], c.now[:0]
	at := 0
	for i, number := range t.cells {
		n := p.widthOf(i) * size
		if !fresh.has(i) {
			from := int(t.narrow.index.cells[number].place - 1)
			c.old = append(c.old, t.narrow.values[from*size:from*size+n]...)
			c.now = append(c.now, values[at:at+n]...)
		}
		at += n
	}
	return c.old, c.now
}

// scatter puts the values of known keys back to their places, in the order in which
// gather or readKnown took them.
func (t *copyTable) scatter(fresh freshOnes, old []byte) {
	size := t.kind.Size()
	for i, number := range t.cells {
		if !fresh.has(i) {
			cell := &t.narrow.index.cells[number]
			from, n := int(cell.place-1), cell.size()*size
			copy(t.narrow.values[from*size:from*size+n], old)
			old = old[n:]
		}
	}
}

// appendWidths appends the number of values of each key: a single number if all have the
// same.
func appendWidths(head []byte, p *piece) []byte {
	if p.lens == nil {
		return binary.AppendUvarint(head, uint64(p.width)+1)
	}
	head = append(head, 0)
	for i := range p.keys {
		head = binary.AppendUvarint(head, uint64(p.widthOf(i)))
	}
	return head
}
