package jobs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

// letter is a [migrate.Message] as it travels between proxies: with the run that it concerns, its
// sender and receiver, and the state of the planner's store as the sender knows it.
type letter struct {
	job      string
	run      plan.Run
	from, to string
	store    string // id and version of the planner's store, as last seen by the sender
	version  uint64
	message  migrate.Message
}

const (
	// letterVersion is that of the format below, oldLetter that without app and uses. A proxy refuses others, and the
	// link ends. Letters that say nothing about apps and uses are still written in the old version, so that a host can
	// join while proxies of both are there.
	letterVersion = 3
	oldLetter     = 2
	maxLetter     = 16 << 20
	maxName       = 512
)

// errLetter ends a link: after a malformed letter it is unknown where the next one begins.
var errLetter = errors.New("malformed message of a site")

// append appends the letter:
//
//	size      4 bytes, big-endian, of what follows
//	version   1 byte
//	job, run, from, to, store   texts
//	version of the store        uvarint
//	kind      1 byte
//	batch     mover (text), number (uvarint)
//	owner     varint
//	app       varint; it, uses and last only in the newer version
//	uses      their number (uvarint), then of each app and command (varints), flags and type of
//	          values (1 byte each), keys in a request (uvarint), width (varint) and ranges
//	last      as batch
//	keys      ranges
//	held      their number (uvarint), then batch and ranges of each
//
// A text is its length (uvarint) and its bytes, at most maxName. Ranges of keys are their number
// (uvarint) and then, for each, in ascending order, the distance from the end of the one before and
// its length less one (uvarints).
func (l *letter) append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0, l.format())
	dst = appendText(dst, l.job)
	dst = appendText(dst, string(l.run))
	dst = appendText(dst, l.from)
	dst = appendText(dst, l.to)
	dst = binary.AppendUvarint(appendText(dst, l.store), l.version)
	m := &l.message
	dst = append(dst, byte(m.Kind))
	dst = appendBatch(dst, m.Batch)
	dst = binary.AppendVarint(dst, int64(m.Owner))
	if l.format() == letterVersion {
		dst = binary.AppendVarint(dst, int64(m.App))
		dst = binary.AppendUvarint(dst, uint64(len(m.Uses)))
		for i := range m.Uses {
			dst = appendUse(dst, &m.Uses[i])
		}
		dst = appendBatch(dst, m.Last)
	}
	dst = appendKeys(dst, m.Keys)
	dst = binary.AppendUvarint(dst, uint64(len(m.Held)))
	for _, h := range m.Held {
		dst = appendKeys(appendBatch(dst, h.Batch), h.Keys)
	}
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst
}

// tellsApp reports whether messages of a kind tell app and uses.
func tellsApp(k migrate.Kind) bool {
	return k == migrate.Hold || k == migrate.Holding || k == migrate.Quiet
}

// untold is the app of a message of an older version, which does not tell.
const untold int32 = math.MinInt32

// format returns the version in which the letter is written.
func (l *letter) format() byte {
	if tellsApp(l.message.Kind) && l.message.App != untold {
		return letterVersion
	}
	return oldLetter
}

// Flags of a use.
const (
	usePushes = 1 << iota
	usePulls
	useLens
	useStrays
)

// appendUse appends a use.
func appendUse(dst []byte, u *route.Use) []byte {
	dst = binary.AppendVarint(binary.AppendVarint(dst, int64(u.App)), int64(u.Head))
	var flags byte
	for i, is := range []bool{u.Push, u.Pull, u.Lens, u.Strays} {
		if is {
			flags |= 1 << i
		}
	}
	dst = append(dst, flags, byte(u.Type))
	dst = binary.AppendVarint(binary.AppendUvarint(dst, uint64(u.Most)), int64(u.Width))
	return appendKeys(dst, u.Keys)
}

// appendText appends a text with its length.
func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// appendBatch appends a batch.
func appendBatch(dst []byte, b route.Batch) []byte {
	return binary.AppendUvarint(appendText(dst, b.Mover), b.Number)
}

// appendKeys appends ascending ranges of keys.
func appendKeys(dst []byte, keys []plan.Keys) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(keys)))
	next := uint64(0)
	for _, k := range keys {
		dst = binary.AppendUvarint(dst, k.First-next)
		dst = binary.AppendUvarint(dst, k.Last-k.First)
		next = k.Last + 1
	}
	return dst
}

// parseLetter parses a letter without its size. The result does not refer to b.
func parseLetter(b []byte) (*letter, error) {
	if err := checkVersion(b); err != nil {
		return nil, err
	}
	p := parser{b: b}
	l := p.letter()
	if m := &l.message; p.failed || len(p.b) > 0 || m.Kind < migrate.Join || m.Kind > migrate.Release {
		return nil, errLetter
	}
	return l, nil
}

// checkVersion returns an error for a letter of another version.
func checkVersion(b []byte) error {
	if len(b) > 0 && b[0] != letterVersion && b[0] != oldLetter {
		return fmt.Errorf("%w: version %d, this proxy speaks %d", errLetter, b[0], letterVersion)
	}
	return nil
}

// letter parses a letter, or counts its memory. Whoever calls it checks p.failed.
func (p *parser) letter() *letter {
	version := p.byte()
	p.cost += letterCost
	l := p.parties()
	l.store, l.version = p.text(), p.uvarint()
	m := &l.message
	m.Kind = migrate.Kind(p.byte())
	m.Batch = p.batch()
	m.Owner = int32(p.varint())
	switch {
	case version == letterVersion:
		m.App = int32(p.varint())
		m.Uses = p.uses()
		m.Last = p.batch()
	case tellsApp(m.Kind):
		m.App = untold
	}
	m.Keys = p.keys()
	for n := p.readCount(); n > 0 && !p.failed; n-- {
		h := migrate.Held{Batch: p.batch(), Keys: p.keys()}
		if p.counting {
			p.cost += heldCost
		} else {
			m.Held = append(m.Held, h)
		}
	}
	return l
}

// parties parses what a letter says of its job and between whom it goes.
func (p *parser) parties() *letter {
	return &letter{job: p.text(), run: plan.Run(p.text()), from: p.text(), to: p.text()}
}

// address is parties, of a letter of which only the first letterHead bytes need be there.
func (p *parser) address() *letter {
	p.byte() // the version
	return p.parties()
}

// uses parses uses.
func (p *parser) uses() (all []route.Use) {
	for n := p.readCount(); n > 0 && !p.failed; n-- {
		u := route.Use{App: int32(p.varint()), Head: int32(p.varint())}
		flags := p.byte()
		u.Push, u.Pull, u.Lens, u.Strays = flags&usePushes != 0, flags&usePulls != 0, flags&useLens != 0, flags&useStrays != 0
		u.Type = pslite.DataType(p.byte())
		u.Most, u.Width = int(p.uvarint()), int(p.varint())
		u.Keys = p.keys()
		if p.counting {
			p.cost += useCost
		} else {
			all = append(all, u)
		}
	}
	return all
}

// Upper bounds of the memory that parts of a letter take once parsed, in bytes.
const (
	useCost  = 256 // an element of Uses, likewise
	heldCost = 128 // an element of Held, in a slice that grows
	keysCost = 16
	// letterCost is for a letter without lists, apart from its texts.
	letterCost = 1 << 10
)

// parser cuts values off the front of b. After the first value that is missing or malformed, failed
// is set and all further values are zero, so that callers need check only once.
type parser struct {
	b      []byte
	failed bool
	// counting means that nothing is kept: only cost, the memory that it would take, is computed.
	counting bool
	cost     int
}

// fail marks the parser as failed, and leaves it without bytes, so that every later read fails as
// well.
func (p *parser) fail() { p.failed, p.b = true, nil }

func (p *parser) byte() byte {
	if len(p.b) == 0 {
		p.fail()
		return 0
	}
	v := p.b[0]
	p.b = p.b[1:]
	return v
}

func (p *parser) uvarint() uint64 {
	v, n := binary.Uvarint(p.b)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.b)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.b = p.b[n:]
	return v
}

// readCount reads the number of elements of a list. Each element takes at least a byte, which
// bounds the number by the bytes that are left.
func (p *parser) readCount() int {
	n := p.uvarint()
	if n > uint64(len(p.b)) {
		p.fail()
		return 0
	}
	return int(n)
}

// text reads a text of at most maxName bytes.
func (p *parser) text() string {
	n := p.readCount()
	if n > maxName {
		p.fail()
		return ""
	}
	text := p.b[:n]
	p.b = p.b[n:]
	if p.counting {
		p.cost += n
		return ""
	}
	return string(text)
}

func (p *parser) batch() route.Batch { return route.Batch{Mover: p.text(), Number: p.uvarint()} }

// keys parses ascending ranges of keys. A first pass (counting) adds up what they cost; only after
// that much is reserved are they stored, so that a length in a letter cannot make this proxy
// allocate more than it may.
func (p *parser) keys() []plan.Keys {
	n := p.readCount()
	if n == 0 {
		return nil
	}
	var keys []plan.Keys
	if p.cost += n * keysCost; !p.counting {
		keys = make([]plan.Keys, 0, n)
	}
	next := uint64(0)
	for i := range n {
		first := next + p.uvarint()
		last := first + p.uvarint()
		// Overflow shows as a value that is too small; next is 0 only after a range that ends at
		// the largest key.
		if p.failed || first < next || last < first || i > 0 && next == 0 {
			p.fail()
			return nil
		}
		if !p.counting {
			keys = append(keys, plan.Keys{First: first, Last: last})
		}
		next = last + 1
	}
	return keys
}
