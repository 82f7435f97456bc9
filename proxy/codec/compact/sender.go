package compact

import (
	"bytes"
	"encoding/binary"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/proxy/relay"
)

// A Sender encodes the messages of one direction of a link. It is not safe for concurrent
// use, except for Abort. Each message that is encoded must be sent, in order: the state at
// the other end follows.
type Sender struct {
	peer      *Peer
	link      uint64
	isDialer  bool
	headLimit int
	metas     metas
	keys      *keylist.Encoder
	lens      *keylist.Encoder
	values    valuesEncoder
	sums      []byte
	numbers   uint64                                // of requests that were retained on this link so far
	waiting   map[exchange]request                  // the last retained request of each exchange
	pays      func() bool                           // see [relay.Link]; nil: always
	perByte   func() (nanoseconds float64, ok bool) // likewise; nil: unknown
	group     shared.ID
	outlet    *shared.Outlet // nil: nothing is shared
	named     bool           // this link has named the group
	away      elsewhere
	place     int // in the last head: the offset at which packed values belong
	close     func()
}

// newSender returns the Sender of what this proxy sends on a link. The link's number is the
// one that the dialing side gave it; isDialer says that this proxy dialed.
func (p *Peer) newSender(link uint64, isDialer bool, headLimit int, loan *relay.Loan) *Sender {
	return &Sender{
		values: valuesEncoder{words: keylist.WordEncoder{Plain: p.limits.PlanesBytes == 0}},
		peer:   p, link: link, isDialer: isDialer, headLimit: headLimit,
		keys:    keylist.NewEncoder(p.limits.Keys, loan),
		lens:    keylist.NewEncoder(p.limits.Lens, loan),
		waiting: make(map[exchange]request),
		close:   func() {},
	}
}

// Close implements [relay.Sender].
func (s *Sender) Close() {
	s.keys.Close()
	s.lens.Close()
	if s.outlet != nil {
		s.outlet.Close()
	}
	s.close()
}

// Encode implements [relay.Sender]. Messages that are not about keys, or too small to gain,
// go as they are. While encoding does not pay all messages do, except for answers to
// requests that were encoded: the other end retains their keys until an answer names them.
func (s *Sender) Encode(dst []byte, shown *relay.Message) (head []byte, plain uint32, ok bool) {
	head, plain, ok = s.encode(dst, shown, fewestKeys, true)
	if !ok {
		s.values.settle(false)
	}
	return head, plain, ok
}

// EncodeAny is Encode for messages whose values the caller may send in another way: they
// are encoded however few keys they have, and their values are a plain frame unless
// [Sender.PackValues] is called next.
func (s *Sender) EncodeAny(dst []byte, shown *relay.Message) (head []byte, plain uint32, ok bool) {
	return s.encode(dst, shown, 0, false)
}

// encode encodes a message with at least fewest bytes of keys. With pack its values
// are shared or packed if that pays; without, they are left to the caller.
func (s *Sender) encode(dst []byte, shown *relay.Message, fewest int, pack bool) (head []byte, plain uint32, ok bool) {
	m, _, err := shown.Decode()
	if err != nil {
		return dst, 0, false
	}
	// An answer is encoded whether it pays or not if its request was: only an answer
	// that names the request releases the keys at the other end.
	if pack && !shown.Forced && s.pays != nil && !s.pays() && (m.Meta.Request || !s.peer.owes(exchangeOf(&m.Meta))) {
		return dst, 0, false
	}
	// The record of how values left is of this message alone; its buffer is reused.
	s.away = elsewhere{packed: s.away.packed[:0], some: s.away.some[:0]}
	if pack && s.promises(m, shown) {
		fewest = 0
	}
	// Values that can be shared are worth encoding a message with any number of keys.
	if !s.fits(m, shown, 0) || !(pack && s.refer(m, shown)) && len(m.Data[0]) < fewest {
		return dst, 0, false
	}
	at := len(dst)
	dst = s.append(dst, m, shown.Frames, pack)
	if len(m.Data) > 1 && dst[at]&(packedValues|sparseValues|sharedValues) == 0 {
		// The values' index among all frames: behind identity, meta and keys.
		plain = 1 << (len(shown.Frames) - len(m.Data) + 1)
	}
	return dst, plain, true
}

// PackValues packs the values of the message last encoded by EncodeAny into its head, which
// begins at dst[at:], if encoding pays and they take most bytes at most. With ok false the
// head is unchanged but may have moved: the caller must use the slice returned, since dst's
// memory has been written to.
func (s *Sender) PackValues(dst []byte, at int, shown *relay.Message, most int) (_ []byte, ok bool) {
	m, _, err := shown.Decode()
	if err != nil || shown.Rest || len(m.Data) < 2 || s.pays != nil && !s.pays() {
		return dst, false
	}
	// Values belong before the lens, which EncodeAny has written already: these move behind
	// them.
	lens := bytes.Clone(dst[at+s.place:])
	packed, form := s.packValues(dst[:at+s.place], m, s.headLimit-(len(dst)-at))
	if form == 0 || len(packed)-(at+s.place) > most {
		return append(packed[:at+s.place], lens...), false
	}
	packed[at] |= form
	return append(packed, lens...), true
}

// fits reports whether a message can be encoded and has at least fewest bytes of keys. It
// is asked before anything changes: once encoded a message must be sent, since the state
// has moved on.
func (s *Sender) fits(m *pslite.Message, shown *relay.Message, fewest int) bool {
	least := 2 // data frames
	if shown.Rest {
		least = 1
	}
	if len(m.Data) < least || len(m.Data) > 3 || len(m.Data[0]) < fewest {
		return false
	}
	limits, held := s.peer.limits, len(m.Data[0])
	if held > limits.Keys.ListBytes {
		return false
	}
	if len(m.Data) == 3 {
		if 2*len(m.Data[2]) > limits.Lens.ListBytes {
			return false
		}
		held += 2 * len(m.Data[2])
	}
	for _, frame := range shown.Frames[:len(shown.Frames)-len(m.Data)] {
		held += len(frame)
	}
	// In the worst case packing adds one byte in 128.
	return held+held/128+headSlack <= s.headLimit
}

// headSlack is what a head takes at most beside its frames.
const headSlack = 256

// append appends the head of a message that fits. The flags are known only in the
// end, when the state has moved on, and are written to the first byte then.
func (s *Sender) append(dst []byte, m *pslite.Message, frames [][]byte, pack bool) []byte {
	at := len(dst)
	dst = append(dst, 0)
	var flags byte
	if m.Identity != nil {
		flags |= hasIdentity
		dst = binary.AppendUvarint(dst, uint64(len(m.Identity)))
		dst = append(dst, m.Identity...)
	}
	dst = s.metas.append(dst, frames[len(frames)-len(m.Data)-1])
	// An answer whose keys its request already brought names that request; all other keys
	// go by keylist.
	keys := m.Data[0]
	if r, ok := s.answered(m, keys); ok {
		flags |= keysOfRequest
		dst = binary.AppendUvarint(dst, r.link)
		dst = binary.AppendUvarint(dst, r.number)
	} else {
		dst = s.keys.Append(dst, keys)
	}
	if s.retain(m, keys) {
		flags |= retained
	}
	s.place = len(dst) - at
	if len(m.Data) > 1 {
		flags |= hasValues
		if pack {
			var form byte
			dst, form = s.appendValues(dst, m, s.headLimit-(len(dst)-at))
			flags |= form
		}
	}
	if len(m.Data) == 3 {
		flags |= hasLens
		dst = appendLens(s.lens, dst, m.Data[2], &s.sums)
	}
	dst[at] = flags
	return dst
}

// answered returns the peer's request that this message answers, if the peer retains its
// keys. It is named once only, and may be asked for again while the message is encoded, which
// then must be.
func (s *Sender) answered(m *pslite.Message, keys []byte) (request, bool) {
	if m.Meta.Request || !m.Meta.Data() {
		return request{}, false
	}
	if a := &s.away; !a.isNamed {
		a.isNamed = true
		a.answers, a.isAnswer = s.peer.name(exchangeOf(&m.Meta), keys)
	}
	return s.away.answers, s.away.isAnswer
}

// retain keeps the keys of a request whose answer will have them, too, and reports whether
// it did. A repeated request is not kept again while the first is: it has one answer.
func (s *Sender) retain(m *pslite.Message, keys []byte) bool {
	if !s.isDialer || !m.Meta.Request || !m.Meta.Data() || !m.Meta.Pull {
		return false
	}
	e := exchangeOf(&m.Meta)
	if before, ok := s.waiting[e]; ok && s.peer.waits(before) {
		return false
	}
	r := request{s.link, s.numbers}
	if !s.peer.keepRequest(r, keys) {
		return false
	}
	s.numbers++
	s.waiting[e] = r
	s.tidy()
	return true
}

// tidy drops answered requests from waiting once they may be the larger part.
func (s *Sender) tidy() {
	if len(s.waiting) < 2*s.peer.limits.RetainedRequests {
		return
	}
	for e, r := range s.waiting {
		if !s.peer.waits(r) {
			delete(s.waiting, e)
		}
	}
}
