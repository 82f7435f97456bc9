package main

import (
	"net/netip"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/relay"
)

// traffic counts the bytes of messages, as they were and as they went.
type traffic struct{ plain, encoded int }

// ratio returns by how much they became smaller.
func (t traffic) ratio() float64 { return float64(t.plain) / float64(max(1, t.encoded)) }

// way is one direction of a link: the codec's sender at one end and its receiver at the other.
type way struct {
	sender   relay.Sender
	receiver relay.Receiver
	close    func()
}

// wayMemory bounds in bytes what the codecs of a session take. Each session has its own memory:
// codecs keep what is not answered for a peer that may come back, and none does.
const wayMemory = 1 << 30

// dial opens a direction of a link between two codecs. Even ids are directions from the dialing
// proxy, odd ones the other way; node is the PS-lite node that sends. The caller calls close.
func dial(from, to *values.Codec, id uint64, node string, memory *relay.Memory) (*way, error) {
	l := relay.Link{
		ID: id, Dialer: relay.Instance{1}, Acceptor: relay.Instance{2}, Dialed: true, HeadLimit: relay.HeadLimit, Memory: memory,
		Destination: netip.MustParseAddrPort("198.18.0.2:9000"), Origin: "here",
	}
	// Both directions are of one link, whose ends change places for the way back.
	if id%2 == 1 {
		l.Dialer, l.Acceptor = l.Acceptor, l.Dialer
	}
	s, back, err := from.Open(l, to.Offer())
	if err != nil {
		return nil, err
	}
	l.Dialed = false
	forth, r, err := to.Open(l, from.Offer())
	if err != nil {
		return nil, err
	}
	s.(relay.Greeter).Ready(zmtp.Ready{Identity: []byte(node)})
	return &way{s, r, func() { s.Close(); back.Close(); forth.Close(); r.Close() }}, nil
}

// carry sends a message through the codec and returns the frame at the given place as it
// arrives. It adds to t.
func (w *way) carry(frames [][]byte, at int, t *traffic) ([]byte, error) {
	for _, f := range frames {
		t.plain += len(f)
	}
	head, plain, ok := w.sender.Encode(nil, &relay.Message{Frames: frames})
	if !ok {
		for _, f := range frames {
			t.encoded += len(f)
		}
		return frames[at], nil
	}
	t.encoded += len(head)
	out, _, err := w.receiver.Decode(head)
	if err != nil {
		return nil, err
	}
	// The codec leaves that frame alone, and it would go beside the encoded head.
	if plain&(1<<at) != 0 {
		t.encoded += len(frames[at])
		return frames[at], nil
	}
	return out[at], nil
}
