package values

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// ends are the codecs of two hosts: that of the worker and that of the server.
type ends struct {
	worker, server *Codec
	links          uint64
	unnamed        bool          // listeners do not know the job
	memory         *relay.Memory // of both; its own, since links of proxies that are killed return nothing
}

func newEnds(t testing.TB, rules ...Rule) *ends {
	t.Helper()
	e := &ends{memory: relay.NewMemory(1 << 30)}
	for _, c := range []**Codec{&e.worker, &e.server} {
		var err error
		if *c, err = New(Options{Compact: compact.DefaultLimits, Rules: rules, Adds: true}); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// way is one direction of a link: what the dialer's process sends.
type way struct {
	sender   relay.Sender
	receiver relay.Receiver
	close    func()
	encoded  int             // bytes of heads and of frames that followed
	plain    int             // bytes of the messages
	detector pslite.Detector // of the relay
}

var memory = relay.NewMemory(1 << 30)

// dial opens a link from the host of one codec to that of another and lets the
// node introduce itself.
func (e *ends) dial(t testing.TB, from, to *Codec, node string) *way {
	t.Helper()
	return e.open(t, e.link(), from, to, node)
}

// link returns another link from a worker to a server.
func (e *ends) link() relay.Link {
	e.links++
	return relay.Link{
		ID: e.links, Dialer: relay.Instance{1}, Acceptor: relay.Instance{2}, Dialed: true, HeadLimit: relay.HeadLimit, Memory: e.memory,
		Client: netip.MustParseAddrPort("198.18.0.1:40000"), Destination: netip.MustParseAddrPort("198.18.0.2:9000"), Origin: "here", Job: "198.18.0.1:8000",
	}
}

// dialServer opens a link of worker ps9 to one of several servers.
func (e *ends) dialServer(t testing.TB, server netip.AddrPort, routes relay.Routes) *way {
	t.Helper()
	e.links++
	return e.open(t, relay.Link{
		ID: e.links, Dialer: relay.Instance{1}, Acceptor: relay.Instance{2}, Dialed: true, HeadLimit: relay.HeadLimit, Memory: e.memory,
		Client: netip.MustParseAddrPort("198.18.0.1:40000"), Destination: server, Origin: "here", Job: "198.18.0.1:8000", Routes: routes,
	}, e.worker, e.server, "ps9")
}

func (e *ends) open(t testing.TB, l relay.Link, from, to *Codec, node string) *way {
	t.Helper()
	if e.unnamed {
		l.Job = ""
	}
	if from == e.server {
		l.Dialer, l.Acceptor = l.Acceptor, l.Dialer
	}
	s, dialerReceives, err := from.Open(l, to.Offer())
	require.NoError(t, err)
	l.Dialed = false
	acceptorSends, r, err := to.Open(l, from.Offer())
	require.NoError(t, err)
	s.(relay.Greeter).Ready(zmtp.Ready{Identity: []byte(node)})
	return &way{sender: s, receiver: r, close: func() {
		s.Close()
		dialerReceives.Close()
		acceptorSends.Close()
		r.Close()
	}}
}

// carry sends a message and returns what comes out.
func (w *way) carry(t testing.TB, frames [][]byte) [][]byte {
	t.Helper()
	held := make([][]byte, len(frames))
	for i, f := range frames {
		held[i] = append([]byte(nil), f...)
		w.plain += len(f)
	}
	head, plain, ok := w.sender.Encode(nil, &relay.Message{Frames: held, Detector: &w.detector})
	if !ok {
		for _, f := range held {
			w.encoded += len(f)
		}
		return held
	}
	w.encoded += len(head)
	out, received, err := w.receiver.Decode(head)
	require.NoError(t, err)
	if plain != received || len(out) != len(frames) {
		t.Fatalf("%d frames, of them plain %b, were received as %d, %b", len(frames), plain, len(out), received)
	}
	all := make([][]byte, len(out))
	for i, f := range out {
		if plain&(1<<i) != 0 {
			f = held[i]
			w.encoded += len(f)
		}
		all[i] = append([]byte(nil), f...)
	}
	if r, ok := w.receiver.(relay.Releaser); ok {
		r.Release()
	}
	return all
}

// request is a message about keys before it is frames.
type request struct {
	timestamp  int32
	app, head  int32
	push, pull bool
	answer     bool
	keys       []uint64
	vals       []float32
	lens       []int32
	kind       pslite.DataType // Float unless set
	raw        []byte          // values of another kind
}

func (q request) frames() [][]byte {
	kind := pslite.Float
	vals := pslite.AppendFloat32(nil, q.vals)
	if q.raw != nil {
		kind, vals = q.kind, q.raw
	}
	m := pslite.Meta{Timestamp: q.timestamp, AppID: q.app, Head: q.head, Request: !q.answer, Push: q.push, Pull: q.pull,
		DataTypes: []pslite.DataType{pslite.Uint64, kind}}
	data := [][]byte{pslite.AppendKeys(nil, q.keys), vals}
	if q.lens != nil {
		m.DataTypes = append(m.DataTypes, pslite.Int32)
		data = append(data, pslite.AppendLens(nil, q.lens))
	}
	return append([][]byte{m.Append(nil, pslite.DMLC)}, data...)
}

func floats(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

// randomKeys returns n ascending keys below most.
func randomKeys(r *rand.Rand, n int, most uint64) []uint64 {
	var keys []uint64
	for at := uint64(0); len(keys) < n; {
		at += 1 + r.Uint64N(most/uint64(n))
		keys = append(keys, at)
	}
	return keys
}

func message(frames [][]byte) *relay.Message { return &relay.Message{Frames: frames} }
