package compact

import (
	"bytes"
	"math/rand/v2"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
)

// twoProxies are a proxy beside a worker and one beside a server, with the
// links that a worker and a server open to each other.
type twoProxies struct {
	worker, server *Peer // what each knows of the other
	requests       direction
	answers        direction
}

// direction is one direction of a link.
type direction struct {
	sender   *Sender
	receiver *Receiver
	plain    int // bytes of frames shown
	encoded  int // bytes of heads and values sent for them
	messages int // that were encoded
}

func newTwoProxies(limits Limits) *twoProxies {
	p := &twoProxies{worker: NewPeer(limits), server: NewPeer(limits)}
	p.reconnectRequests(7)
	p.answers = direction{sender: p.server.newSender(3, true, 1<<20, new(relay.Loan)), receiver: p.worker.newReceiver(3, false, new(relay.Loan))}
	return p
}

// reconnectRequests makes a new link for the worker's requests.
func (p *twoProxies) reconnectRequests(link uint64) {
	if p.requests.receiver != nil {
		p.requests.receiver.Close()
	}
	p.requests.sender, p.requests.receiver = p.worker.newSender(link, true, 1<<20, new(relay.Loan)), p.server.newReceiver(link, false, new(relay.Loan))
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

// pass sends a message and checks that it arrives as it was: shown whole, or
// with frames that the relay does not hold.
func (d *direction) pass(t fataler, frames [][]byte) {
	t.Helper()
	d.show(t, frames, len(frames))
}

// show sends a message of which the relay holds the first frames.
func (d *direction) show(t fataler, frames [][]byte, held int) {
	t.Helper()
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	d.plain += size
	head, plain, ok := d.sender.Encode([]byte("before"), &relay.Message{Frames: frames[:held], Rest: held < len(frames)})
	if !ok {
		d.encoded += size
		return
	}
	head = head[len("before"):]
	d.messages++
	d.encoded += len(head)
	got, gotPlain, err := d.receiver.Decode(bytes.Clone(head))
	if err != nil {
		t.Fatalf("decoding: %v", err)
	}
	if gotPlain != plain {
		t.Fatalf("plain frames %b, sent %b", gotPlain, plain)
	}
	restored := slices.Clone(got)
	for i, f := range frames {
		switch {
		case i >= len(restored):
			restored = append(restored, f)
		case plain>>i&1 == 1:
			restored[i] = f
		default:
			continue
		}
		d.encoded += len(f)
	}
	if !slices.EqualFunc(restored, frames, bytes.Equal) {
		t.Fatalf("sent frames of %v bytes, got %v, or other bytes", sizes(frames), sizes(restored))
	}
}

func sizes(frames [][]byte) []int {
	var out []int
	for _, f := range frames {
		out = append(out, len(f))
	}
	return out
}

// data is a data message with the given keys and nvals floats, or none for a
// pull's request.
func data(dialect pslite.Dialect, timestamp int32, request, push, pull bool, keys []uint64, values, lens []byte) [][]byte {
	m := pslite.Meta{AppID: 0, CustomerID: 0, Timestamp: timestamp, Request: request, Push: push, Pull: pull,
		DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}, DataSize: int32(8*len(keys) + len(values) + len(lens))}
	frames := [][]byte{nil, pslite.AppendKeys(nil, keys), values}
	if lens != nil {
		m.DataTypes = append(m.DataTypes, pslite.Int32)
		frames = append(frames, lens)
	}
	frames[0] = m.Append(nil, dialect)
	return frames
}

func randomKeys(rng *rand.Rand, n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = rng.Uint64()
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
