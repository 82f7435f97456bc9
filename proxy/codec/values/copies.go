package values

import (
	"encoding/binary"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/ef21"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// copies are what the sending end of a link, on a server's host, remembers of what
// the worker at the other end has: the copy that both ends keep of EF21-P. See
// [copied] for the other end.
//
// A key's values go whole until they are in a copy, and again where they need not
// be what the worker has: after a change of rules, after an answer that went in
// another way, after the key has moved, and on a new link. Every part has a check
// of all parts so far and of a piece of the copy, so that the ends cannot come to
// disagree unseen.
type copies struct {
	codec   *Codec
	limit   int // bytes that the receiver remembers
	left    int
	taken   int // of the codec's budget
	numbers map[copyName]int
	tables  []*copyTable
	check   checksum

	encoder   ef21.Encoder
	moves     uint64      // of codec.moves, so many were taken up
	held      pslite.Keys // of an answer that is wanted whole and has not come yet
	heldStamp int32
	app       copyName // of the message
	old, now  []byte   // values of keys that are known, gathered
	fresh     []byte   // bits: keys that are not
}

// copyName says which values are the same parameter's: another app's may be others
// for the same keys. A request's head says nothing of that: to some jobs it is the
// number of a step.
type copyName struct {
	app, customer int32
	kind          element.Kind
}

// copyTable is the keys of one name.
type copyTable struct {
	kind   element.Kind
	dense  map[uint64]*denseCopy
	narrow *keyTable // a cell's pulledBit says that the copy is what the worker has
	parts  int
	// At the sending end:
	began  bool // the receiver knows of the table
	forget bool // it has to forget the narrow keys
	held   int  // bytes that these take there until it is told
	tau    map[Range]*ef21.Threshold
}

// denseCopy is a key of many values.
type denseCopy struct {
	values []byte
	tau    ef21.Threshold
}

// maxCopyTables bounds the tables of a link.
const maxCopyTables = 64

// denseBytes is what a dense key costs beside its values.
const denseBytes = 128

// Flags of a part of copied values.
const (
	copyBegins byte = 1 << iota // the table is new: its kind follows
	copyForget                  // all narrow keys are forgotten before
	copyDense                   // one dense key
	copyWhole                   // whose values come whole, or keys of which none is known
	copySome                    // keys of which some are not known: bits say which
)

// pullLimit is how many bytes of pulled values an end of a link remembers for error
// feedback.
func (c *Codec) pullLimit() int { return int(min(pullBytes, c.budget.limit/4)) }

func newCopies(c *Codec, limit int) copies {
	return copies{codec: c, limit: limit, left: limit, numbers: map[copyName]int{}, moves: c.moves.count.Load()}
}

func newCopyTable(kind element.Kind) *copyTable {
	return &copyTable{kind: kind, dense: map[uint64]*denseCopy{}, narrow: &keyTable{index: newIndex()}, tau: map[Range]*ef21.Threshold{}}
}

// close gives back all memory.
func (c *copies) close() {
	if len(c.tables) > 0 {
		c.codec.moves.users.Add(-1)
	}
	c.codec.budget.give(c.taken)
	c.taken, c.tables, c.numbers = 0, nil, map[copyName]int{}
}

// take takes memory for so many bytes, if there is any.
func (c *copies) take(n int) bool {
	if n > c.left || !c.codec.budget.take(n) {
		return false
	}
	c.left -= n
	c.taken += n
	return true
}

func (c *copies) give(n int) {
	c.codec.budget.give(n)
	c.left += n
	c.taken -= n
}

// forget has all values go whole again.
func (c *copies) forget() {
	for _, t := range c.tables {
		for _, d := range t.dense {
			d.values = d.values[:0]
		}
		for i := range t.narrow.index.cells {
			t.narrow.index.cells[i].width &^= pulledBit
		}
		clear(t.tau)
	}
}

// drop has the values of these keys go whole again, and returns of how many there
// was a copy.
func (c *copies) drop(keys pslite.Keys) (dropped int) {
	for _, t := range c.tables {
		if len(t.dense)+t.narrow.index.used == 0 {
			continue
		}
		for i := range keys.Len() {
			key := keys.At(i)
			if d := t.dense[key]; d != nil && len(d.values) > 0 {
				d.values = d.values[:0]
				dropped++
			}
			if cell := t.narrow.index.at(key); cell.place != 0 && cell.pulled() {
				cell.width &^= pulledBit
				dropped++
			}
		}
	}
	return dropped
}

// table returns the table of the message's values of a kind; nil where there are
// too many.
func (c *copies) table(kind element.Kind) (t *copyTable, number int) {
	name := c.app
	name.kind = kind
	number, ok := c.numbers[name]
	if ok {
		return c.tables[number], number
	}
	if len(c.tables) >= maxCopyTables {
		return nil, 0
	}
	if number = len(c.tables); number == 0 {
		c.codec.moves.users.Add(1)
	}
	c.numbers[name] = number
	c.tables = append(c.tables, newCopyTable(kind))
	return c.tables[number], number
}

// appendCopied appends what of a piece differs most from what the worker has, or
// all of it the first time. Without ok nothing was appended.
func (s *Sender) appendCopied(head []byte, p *piece, r *Rule, keys pslite.Keys, values []byte) (all []byte, form, sent int, ok bool) {
	if form = formPullThreshold; r.PullThreshold == 0 {
		form = formPullQuantize
	}
	c := &s.copies
	if s.theirs.Pulls == 0 {
		s.codec.counts.why(ReasonPeer)
		return head, form, 0, false
	}
	meta := &s.message.Meta
	c.app = copyName{app: meta.AppID, customer: meta.CustomerID}
	config := ef21.Config{Sparsity: r.PullThreshold, Bits: r.PullQuantize, Bucket: r.QuantizeBucket, Half: r.Wire != ""}
	t, number := c.table(p.kind)
	if t == nil {
		s.codec.counts.why(ReasonMemory)
		return head, form, 0, false
	}
	if p.dense() {
		head, sent, ok = c.appendDense(head, t, number, config, p, keys, values)
	} else {
		head, sent, ok = c.appendNarrow(head, t, number, config, p, keys, values)
	}
	if !ok {
		s.codec.counts.why(ReasonMemory)
	}
	return head, form, sent, ok
}

// begin appends a part's beginning up to the table's kind.
func (t *copyTable) begin(head []byte, number int, flags byte) []byte {
	if !t.began {
		flags |= copyBegins
	}
	head = binary.AppendUvarint(append(head, byte(partCopied), flags), uint64(number))
	if !t.began {
		head = append(head, byte(t.kind))
	}
	t.began = true
	return head
}

// appendDense appends the part of a dense key.
func (c *copies) appendDense(head []byte, t *copyTable, number int, config ef21.Config, p *piece, keys pslite.Keys, values []byte) (all []byte, sent int, ok bool) {
	key := keys.At(p.first)
	d := t.dense[key]
	if d == nil || cap(d.values) != len(values) {
		// What the receiver has of another length stays counted until it has this.
		if !c.take(denseBytes + len(values)) {
			return head, 0, false
		}
		if d != nil {
			c.give(denseBytes + cap(d.values))
		}
		d = &denseCopy{values: make([]byte, 0, len(values))}
		t.dense[key] = d
	}
	start := len(head)
	if len(d.values) > 0 {
		head = binary.AppendUvarint(t.begin(head, number, copyDense), uint64(p.first))
		if head, sent, ok = c.encoder.Append(head, config, t.kind, &d.tau, d.values, values); ok {
			return c.check.append(head, start+1, t, d.values), sent, true
		}
		c.codec.counts.why(ReasonNotFinite)
		head = head[:start]
	}
	d.values = d.values[:len(values)]
	copy(d.values, values)
	d.tau.Reset()
	head = binary.AppendUvarint(t.begin(head, number, copyDense|copyWhole), uint64(p.first))
	head = binary.AppendUvarint(head, uint64(len(values)))
	head = append(head, values...)
	return c.check.append(head, start+1, t, d.values), p.values(), true
}

// pieceKeys is what both ends find out about the keys of a piece.
type pieceKeys struct {
	fresh  int  // keys whose values come whole
	inLine bool // all are known, and their values are one after the other
	from   int  // where they begin, in numbers
	known  int  // numbers of the others
}

// freshOnes is whether keys are fresh; nil means all are.
type freshOnes []byte

func (f freshOnes) has(i int) bool { return f == nil || f[i/8]>>(i%8)&1 != 0 }

// appendNarrow appends the part of keys of few values.
func (c *copies) appendNarrow(head []byte, t *copyTable, number int, config ef21.Config, p *piece, keys pslite.Keys, values []byte) (all []byte, sent int, ok bool) {
	if !c.place(t, p, keys) {
		return head, 0, false
	}
	k := c.look(t, p, keys)
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
	head = t.begin(head, number, flags)
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
		head = c.appendFresh(head, t, p, keys, values, fresh)
	}
	sent = (len(head) - before) / size
	if k.known > 0 {
		old, now := c.gather(t, &k, p, keys, values, fresh)
		tau := t.tau[p.span.Range]
		if tau == nil {
			tau = &ef21.Threshold{}
			t.tau[p.span.Range] = tau
		}
		var some int
		if head, some, ok = c.encoder.Append(head, config, t.kind, tau, old, now); !ok {
			c.codec.counts.why(ReasonNotFinite)
			c.drop(keys[8*p.first : 8*(p.first+p.keys)])
			t.forget = t.forget || flags&copyForget != 0
			t.began = t.began && head[start+1]&copyBegins == 0
			return c.appendNarrow(head[:start], t, number, config, p, keys, values)
		}
		sent += some
		if !k.inLine {
			t.scatter(p, keys, fresh, old)
		}
	}
	return c.check.append(head, start+1, t, t.narrow.values), sent, true
}

// place makes room for a piece's keys, if there is enough, after forgetting all
// others if need be.
func (c *copies) place(t *copyTable, p *piece, keys pslite.Keys) bool {
	missing, values, same := t.narrow.index.missing(keys, p)
	if same && missing == 0 {
		return true
	}
	free := t.held // the next part frees it
	c.left += free
	if same && c.take(missing*cellBytes+values*t.kind.Size()) {
		t.held = 0
		t.add(p, keys)
		return true
	}
	all := p.keys*cellBytes + p.to - p.from
	if before := t.bytes(); before > 0 && all <= c.left+before {
		free += before
		c.give(before)
		t.narrow, t.forget = &keyTable{index: newIndex()}, true
		if c.take(all) {
			t.held = 0
			t.add(p, keys)
			return true
		}
	}
	c.left -= free
	t.held = free
	return false
}

// add gives those of a piece's keys a place that have none.
func (t *copyTable) add(p *piece, keys pslite.Keys) {
	for i := range p.keys {
		t.narrow.index.add(keys.At(p.first+i), p.widthOf(i))
	}
	size := t.narrow.index.values * t.kind.Size()
	t.narrow.values = slices.Grow(t.narrow.values, size-len(t.narrow.values))[:size]
}

// bytes is what the narrow keys take.
func (t *copyTable) bytes() int { return t.narrow.index.bytes() + len(t.narrow.values) }

// look finds out what is known of a piece's keys, which have places, and sets
// c.fresh.
func (c *copies) look(t *copyTable, p *piece, keys pslite.Keys) (k pieceKeys) {
	c.fresh = slices.Grow(c.fresh[:0], (p.keys+7)/8)[:(p.keys+7)/8]
	clear(c.fresh)
	k.inLine = true
	next := 0
	for i := range p.keys {
		cell := t.narrow.index.at(keys.At(p.first + i))
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

// appendFresh appends the values of fresh keys, and copies them.
func (c *copies) appendFresh(head []byte, t *copyTable, p *piece, keys pslite.Keys, values []byte, fresh freshOnes) []byte {
	at, size := 0, t.kind.Size()
	for i := range p.keys {
		n := p.widthOf(i) * size
		if fresh.has(i) {
			cell := t.narrow.index.at(keys.At(p.first + i))
			cell.width |= pulledBit
			copy(t.narrow.values[(int(cell.place)-1)*size:], values[at:at+n])
			head = append(head, values[at:at+n]...)
		}
		at += n
	}
	return head
}

// gather returns what the worker has of the known keys, to be changed, and what it
// should have.
func (c *copies) gather(t *copyTable, k *pieceKeys, p *piece, keys pslite.Keys, values []byte, fresh freshOnes) (old, now []byte) {
	size := t.kind.Size()
	if k.inLine {
		return t.narrow.values[k.from*size : (k.from+k.known)*size], values
	}
	c.old, c.now = c.old[:0], c.now[:0]
	at := 0
	for i := range p.keys {
		n := p.widthOf(i) * size
		if !fresh.has(i) {
			from, _ := t.narrow.index.find(keys.At(p.first + i))
			c.old = append(c.old, t.narrow.values[int(from)*size:int(from)*size+n]...)
			c.now = append(c.now, values[at:at+n]...)
		}
		at += n
	}
	return c.old, c.now
}

// scatter puts the values of known keys back to their places.
func (t *copyTable) scatter(p *piece, keys pslite.Keys, fresh freshOnes, old []byte) {
	size := t.kind.Size()
	for i := range p.keys {
		if !fresh.has(i) {
			from, width := t.narrow.index.find(keys.At(p.first + i))
			n := width * size
			copy(t.narrow.values[int(from)*size:int(from)*size+n], old)
			old = old[n:]
		}
	}
}

// appendWidths appends the number of values of each key: one number where all have
// the same.
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
