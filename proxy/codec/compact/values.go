package compact

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/codec/planes"
	"github.com/psidecar/psidecar/proxy/codec/sparsewords"
	"github.com/psidecar/psidecar/proxy/relay"
)

// valuesEncoder packs values frames and remembers for which messages that paid.
// [Sender.Hold] has the relay hold frames that it would not hold by itself: whether the
// last such frame of the same keys gained decides, and once in a while one is tried.
type valuesEncoder struct {
	words    keylist.WordEncoder
	sparse   sparsewords.Encoder
	trials   map[trialName]*trial
	planes   planes.Encoder
	dense    trial  // of planes
	isSparse bool   // sparsewords was worth it for the values last packed
	trying   *trial // of the message that Hold asked for and Encode has not seen; nil: none
}

// trialName is what large messages about the same parameters have in common.
type trialName struct {
	key        uint64 // the first
	keys       int
	isPush     bool
	app, bytes int
}

// trial says for how many messages a large frame is not asked for: the pause doubles with
// each frame that did not pay, up to mostSkips.
type trial struct {
	skip int // messages to skip from now on
	wait int // the last pause, in messages
}

const (
	maxTrials = 1024
	mostSkips = 512
)

// Hold implements [relay.Holder]: values too large for the relay to hold by itself are
// wanted if earlier ones of the same keys were mostly zeros, or one other word, or can be
// shared, and otherwise once in [mostSkips] messages.
func (s *Sender) Hold(shown *relay.Message) bool {
	e := &s.values
	e.trying = nil
	// Holding a large frame delays it, so it is not even held while encoding does not
	// pay.
	if s.pays != nil && !s.pays() {
		return false
	}
	if len(shown.Frames) < 2 {
		return false
	}
	m, _, err := shown.Decode()
	if err != nil && len(m.Data) != 1 {
		return false
	}
	if s.wantsShared(m, shown) {
		return true
	}
	if shown.Next > uint64(s.peer.limits.SparseBytes) {
		return false
	}
	keys := m.Keys()
	if !m.Meta.Data() || m.Meta.Request != m.Meta.Push || keys.Len() == 0 {
		return false
	}
	name := trialName{keys.At(0), keys.Len(), m.Meta.Push, int(m.Meta.AppID), int(shown.Next)}
	t := e.trials[name]
	if t == nil {
		// All are forgotten at once: with so many parameters starting over is better
		// than an exact account.
		if e.trials == nil || len(e.trials) >= maxTrials {
			e.trials = map[trialName]*trial{}
		}
		t = &trial{}
		e.trials[name] = t
	}
	if t.skip > 0 {
		t.skip--
		return false
	}
	e.trying = t
	return true
}

// settle notes whether the frame that Hold asked for was worth it.
func (e *valuesEncoder) settle(paid bool) {
	if t := e.trying; t != nil {
		e.trying = nil
		t.settle(paid)
	}
}

func (t *trial) settle(paid bool) {
	if paid {
		t.wait = 0
		return
	}
	t.wait = min(max(8, 2*t.wait), mostSkips)
	t.skip = t.wait
}

// promises reports whether the values alone make a message with few keys worth encoding:
// one key of many values, as a rule.
func (s *Sender) promises(m *pslite.Message, shown *relay.Message) bool {
	if shown.Rest || len(m.Data) < 2 || len(m.Data[0]) >= fewestKeys {
		return false
	}
	values := m.Data[1]
	return len(values) <= s.peer.limits.SparseBytes && sparsewords.Promises(values, widthOf(m, values))
}

// packValues appends packed values if the other end takes them, room suffices for them and
// for the lengths, and it pays. form is the flag that says how, 0 if nothing was appended.
func (s *Sender) packValues(dst []byte, m *pslite.Message, room int) (_ []byte, form byte) {
	// Lengths come behind the values, and their sums take up to twice their size,
	// packed a little more.
	for _, frame := range m.Data[2:] {
		room -= 3 * len(frame)
	}
	values := m.Data[1]
	if len(values)+headSlack > room {
		s.values.settle(false)
		return dst, 0
	}
	dst, form = s.packSome(dst, values, widthOf(m, values))
	if len(values) <= s.peer.limits.SparseBytes {
		s.values.settle(s.values.isSparse)
	}
	return dst, form
}

// packSome appends packed values, of words of a width, if the other end takes them and it pays.
func (s *Sender) packSome(dst, values []byte, width int) (_ []byte, form byte) {
	start, e := len(dst), &s.values
	if e.isSparse = false; len(values) <= s.peer.limits.SparseBytes {
		var ok bool
		dst, ok = e.sparse.Append(dst, values, width)
		e.isSparse = ok
		if ok && (len(values) > s.peer.limits.ValuesBytes || len(dst)-start <= len(values)/clearlySparse) {
			return dst, sparseValues
		}
	}
	if len(values) <= s.peer.limits.ValuesBytes {
		var ok bool
		if dst, ok = e.words.Append(dst[:start], values); ok {
			return dst, packedValues
		}
	}
	return s.appendPlanes(dst[:start], values, width)
}

// appendPlanes appends values by package planes if the other end takes them and it spares bytes.
// While that takes longer than it spares the link, few are tried.
func (s *Sender) appendPlanes(dst, values []byte, width int) (_ []byte, form byte) {
	t := &s.values.dense
	if len(values) > s.peer.limits.PlanesBytes || len(values) < planes.Least {
		return dst, 0
	}
	if t.skip > 0 {
		t.skip--
		return dst, 0
	}
	start, began := len(dst), time.Now()
	dst, ok := s.values.planes.Append(dst, values, width)
	paid := ok
	if s.perByte != nil {
		if perByte, known := s.perByte(); known {
			spared := float64(len(values) - (len(dst) - start))
			paid = ok && spared*perByte > float64(bothEnds*time.Since(began))
		}
	}
	t.settle(paid)
	if !ok {
		return dst, 0
	}
	return dst, planeValues
}

// bothEnds is the time at both ends, as a multiple of that of encoding.
const bothEnds = 2

// clearlySparse is the ratio from which on sparsewords is taken without trying a word
// list, which spends a bit on each word.
const clearlySparse = 16

// widthOf returns the size of the words that values are compared by: that of their type, or
// of a float32 if that is one byte or unknown.
func widthOf(m *pslite.Message, values []byte) int {
	if len(m.Meta.DataTypes) > 1 {
		if size := m.Meta.DataTypes[1].Size(); size == 2 || size == 8 {
			return size
		}
	}
	return 4
}

// validValues reports whether a head's flags say at most once how the values are packed,
// and only of a message that has values.
func validValues(flags byte) bool {
	form := flags & (packedValues | sparseValues | sharedValues)
	return form == 0 || flags&hasValues != 0 && (form == planeValues || bits.OnesCount8(form) == 1)
}

// opener is a decoder of packages sparsewords or planes.
type opener interface {
	Open(src []byte, most int) (size int, err error)
	Fill(out []byte) (rest []byte, err error)
}

// readInto reads values that went by sparsewords or planes. Their memory is borrowed before they
// are unpacked, as their size is only what the head claims. They are valid until the next
// Decode or Release.
func (r *Receiver) readInto(d opener, src []byte, most int) (values, rest []byte, err error) {
	size, err := d.Open(src, most)
	if err != nil {
		return nil, nil, err
	}
	if values, err = r.sparseRoom.Reserve(r.loan, size); err != nil {
		return nil, nil, fmt.Errorf("values: %w", err)
	}
	values = values[:size]
	rest, err = d.Fill(values)
	return values, rest, err
}

// Release implements [relay.Releaser].
func (r *Receiver) Release() {
	r.loan.Release()
	if r.inlet != nil {
		r.inlet.Release()
	}
}
