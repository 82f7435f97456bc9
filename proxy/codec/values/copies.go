package values

import (
	"encoding/binary"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/ef21"
	"github.com/psidecar/psidecar/proxy/codec/element"
)

// copies are the values that the worker at the other end of a link has, as the
// sending end, on a server's host, remembers them: the copy w that both ends keep for
// EF21-P. See [copied] for the other end.
//
// A key's values go whole until they are in a copy, and again whenever the worker may
// have others: after a change of rules, after an answer that went in another form,
// after the key has moved, and on a new link. Every part has a checksum of all parts
// so far and of a piece of the copy, so that the ends cannot diverge unnoticed.
//
// A dense key is in a copy if its values are not empty, a narrow key if its cell has
// pulledBit. Memory that the receiver keeps for a key stays counted when the key
// leaves the copy, since no message informs the receiver of that.
type copies struct {
	codec   *Codec
	left    int // bytes that the receiver may still remember, by its offer
	taken   int // bytes taken from the codec's budget
	numbers map[copyName]int
	tables  []*copyTable
	check   checksum

	encoder   ef21.Encoder
	moves     uint64      // how many of codec.moves were applied
	held      pslite.Keys // of an answer that is wanted whole and was not shown whole yet
	heldStamp int32
	app       copyName               // of the message at hand; its kind is not set
	commands  map[copyName]*commands // of answers, by app and customer; at most maxCopyTables
	apart     bool                   // nothing that is remembered belongs to the answer's command
	old, now  []byte                 // values of known keys, gathered: the copy's and the message's
	fresh     []byte                 // a bit for each key of the piece: set if its values go whole
}

// copyName identifies parameters beside their key: another app may have other values for
// the same keys. Which command's values a copy has, [commands] says.
type copyName struct {
	app, customer int32
	kind          element.Kind
}

// copyTable is the keys of one name.
type copyTable struct {
	kind   element.Kind
	dense  map[uint64]*denseCopy
	narrow *keyTable // a cell's pulledBit says that the worker has the copy's values
	cells  []uint32  // numbers of the cells, in narrow, of the keys of the last piece, once they have places
	parts  int       // parts so far, for the checksum
	// At the sending end:
	began  bool                      // the receiver knows the table
	forget bool                      // the next part has the receiver forget the narrow keys
	held   int                       // bytes that narrow keys take at the receiver until it forgets them
	tau    map[Range]*ef21.Threshold // of the narrow keys, by span
}

// denseCopy is a key of many values. At the sending end values is empty if the worker
// may have others; its capacity is the room that the receiver keeps.
type denseCopy struct {
	values []byte
	tau    ef21.Threshold
}

// maxCopyTables bounds the tables of a link.
const maxCopyTables = 64

// denseBytes is what a dense key costs beside its values. Both ends count it.
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
	return copies{codec: c, left: limit, numbers: map[copyName]int{}, commands: map[copyName]*commands{}, moves: c.moves.count.Load()}
}

func newCopyTable(kind element.Kind) *copyTable {
	return &copyTable{kind: kind, dense: map[uint64]*denseCopy{}, narrow: &keyTable{index: newIndex()}, tau: map[Range]*ef21.Threshold{}}
}

// close releases all memory.
func (c *copies) close() {
	if len(c.tables) > 0 {
		c.codec.moves.users.Add(-1)
	}
	c.codec.budget.give(c.taken)
	c.taken, c.tables, c.numbers = 0, nil, map[copyName]int{}
}

// begin is called for each answer. The same keys of another app or customer, or under another
// command, may have other values.
func (c *copies) begin(m *pslite.Message) {
	c.app, c.apart = copyName{app: m.Meta.AppID, customer: m.Meta.CustomerID}, false
	if !typed(m) {
		return
	}
	of := c.commands[c.app]
	if of == nil && len(c.commands) < maxCopyTables {
		of = new(commands)
		c.commands[c.app] = of
	}
	c.apart = of == nil || !of.remembers(m.Meta.Head)
}

// reserve counts n bytes against the receiver's limit and the codec's budget, and reports
// whether both had them.
func (c *copies) reserve(n int) bool {
	if n > c.left || !c.codec.budget.reserve(n) {
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

// forget has all values go whole again. The receiver keeps its copies until it gets the
// next ones.
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

// drop has the values of these keys go whole again, and returns of how many there was a
// copy.
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

// table returns the table of the message's values of a kind, made if need be; nil if there
// are too many.
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

// appendCopied appends the values of a piece that differ most from the worker's, or
// all of them the first time. With ok false nothing was appended.
func (s *Sender) appendCopied(head []byte, p *piece, r *Rule, keys pslite.Keys, values []byte) (all []byte, form, sent int, ok bool) {
	if form = formPullThreshold; r.PullThreshold == 0 {
		form = formPullQuantize
	}
	c := &s.copies
	if s.theirs.Pulls == 0 {
		s.codec.counts.why(ReasonPeer)
		return head, form, 0, false
	}
	// A key that came twice could have two numbers of values, and has only one copy.
	if !p.dense() && !keys[8*p.first:8*(p.first+p.keys)].Ascend() {
		s.codec.counts.why(ReasonShape)
		return head, form, 0, false
	}
	if c.apart {
		s.codec.counts.why(ReasonCommands)
		return head, form, 0, false
	}
	config := ef21.Config{Sparsity: r.PullThreshold, Bits: r.PullQuantize, Bucket: r.QuantizeBucket, Half: r.Wire != "", Packed: s.theirs.Packed}
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

// appendHead appends the beginning of a part, up to the kind of a table that begins.
func (t *copyTable) appendHead(head []byte, number int, flags byte) []byte {
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

// appendDense appends the part of a dense key: differences if there is a copy and they can
// be coded, or else the values whole, which become the copy.
func (c *copies) appendDense(head []byte, t *copyTable, number int, config ef21.Config, p *piece, keys pslite.Keys, values []byte) (all []byte, sent int, ok bool) {
	key := keys.At(p.first)
	d := t.dense[key]
	if d == nil || cap(d.values) != len(values) {
		// The receiver keeps values of another length, and their memory stays
		// counted, until it gets these.
		if !c.reserve(denseBytes + len(values)) {
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
		head = binary.AppendUvarint(t.appendHead(head, number, copyDense), uint64(p.first))
		if head, sent, ok = c.encoder.Append(head, config, t.kind, &d.tau, d.values, values); ok {
			return c.check.append(head, start+1, t, d.values), sent, true
		}
		c.codec.counts.why(ReasonNotFinite)
		head = head[:start]
	}
	d.values = d.values[:len(values)]
	copy(d.values, values)
	d.tau.Reset()
	head = binary.AppendUvarint(t.appendHead(head, number, copyDense|copyWhole), uint64(p.first))
	head = binary.AppendUvarint(head, uint64(len(values)))
	head = append(head, values...)
	return c.check.append(head, start+1, t, d.values), p.values(), true
}
