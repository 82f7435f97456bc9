package compact

import (
	"encoding/binary"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// A Sender encodes the messages of one direction of a link. It is not safe for
// use by several goroutines.
type Sender struct {
	peer     *Peer
	link     uint64
	isDialer bool
	detector pslite.Detector
	message  pslite.Message
	metas    metas
	keys     *keylist.Encoder
	lens     *keylist.Encoder
	sums     []byte
	numbers  uint64               // of requests that were retained
	waiting  map[exchange]request // of them, the last for each exchange
}

// NewSender returns the Sender of what this proxy sends on a link. The link's
// number is that which the side gave it that dialed; isDialer says that we did.
func (p *Peer) NewSender(link uint64, isDialer bool) *Sender {
	return &Sender{
		peer: p, link: link, isDialer: isDialer,
		keys:    keylist.NewEncoder(p.limits.Keys),
		lens:    keylist.NewEncoder(p.limits.Lens),
		waiting: make(map[exchange]request),
	}
}

// Encode appends the head of the encoded message to dst and returns it with the
// values frame, which follows the head on the link and aliases the frames'
// memory. Where ok is false the message is to be sent as it is: it is not about
// keys, or too small to gain. A message that was encoded must be sent.
func (s *Sender) Encode(dst []byte, frames [][]byte) (head, values []byte, ok bool) {
	m := &s.message
	if _, err := m.Decode(&s.detector, frames); err != nil {
		return dst, nil, false
	}
	if len(m.Data) < 2 || len(m.Data) > 3 || len(m.Data[0]) < fewestKeys || len(m.Data[0]) > s.peer.limits.Keys.ListBytes {
		return dst, nil, false
	}
	if len(m.Data) == 3 && 2*len(m.Data[2]) > s.peer.limits.Lens.ListBytes {
		return dst, nil, false
	}
	return s.append(dst, m, frames), m.Data[1], true
}

func (s *Sender) append(dst []byte, m *pslite.Message, frames [][]byte) []byte {
	at := len(dst)
	dst = append(dst, 0)
	var flags byte
	meta := frames[len(frames)-len(m.Data)-1]
	if m.Identity != nil {
		flags |= hasIdentity
		dst = binary.AppendUvarint(dst, uint64(len(m.Identity)))
		dst = append(dst, m.Identity...)
	}
	dst = s.metas.append(dst, meta)
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
	if len(m.Data) == 3 {
		flags |= hasLens
		dst = appendLens(s.lens, dst, m.Data[2], &s.sums)
	}
	dst = binary.AppendUvarint(dst, uint64(len(m.Data[1])))
	dst[at] = flags
	return dst
}

// answered returns the peer's request that this message answers.
func (s *Sender) answered(m *pslite.Message, keys []byte) (request, bool) {
	if m.Meta.Request || !m.Meta.Data() {
		return request{}, false
	}
	return s.peer.name(exchangeOf(&m.Meta), keys)
}

// retain keeps the keys of a request whose answer will have them too. A
// repeated request is not kept again while the first is: it has one answer.
func (s *Sender) retain(m *pslite.Message, keys []byte) bool {
	if !s.isDialer || !m.Meta.Request || !m.Meta.Data() || !m.Meta.Pull {
		return false
	}
	e := exchangeOf(&m.Meta)
	if before, ok := s.waiting[e]; ok && s.peer.waits(before) {
		return false
	}
	r := request{s.link, s.numbers}
	if !s.peer.keep(r, keys) {
		return false
	}
	s.numbers++
	s.waiting[e] = r
	s.tidy()
	return true
}

// tidy drops what was answered from the map, once that may be the larger part.
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
