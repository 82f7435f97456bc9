package observe

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Of a job whose messages are not read it is known how many connections carry them, and
// whose they are as soon as one shows it. They are not counted as damaged.
func TestUnreadConnectionsOfAJob(t *testing.T) {
	o := New(Options{Locality: counts.DefaultLocalityOptions})
	scheduler := netip.MustParseAddrPort("198.18.0.1:9000")
	j := o.job(scheduler)
	stream := func(cookie uint64) *stream {
		n := j.addNode(roleWorker)
		s := &stream{id: bpf.NewStreamID(cookie, bpf.Egress), from: netip.MustParseAddrPort("198.18.0.1:50000"), to: scheduler, synced: true, sender: n}
		o.streams[s.id] = s
		return s
	}
	read := func(want int, fork pslite.Fork) {
		t.Helper()
		if v := o.Jobs()[0]; v.Unread != want || v.Fork != fork {
			t.Errorf("%d connections of %q, want %d of %q", v.Unread, v.Fork, want, fork)
		}
	}
	read(0, pslite.NoFork)
	first, second := stream(1), stream(2)
	o.Handle(&bpf.Record{Kind: bpf.KindForeign, Stream: first.id})
	read(1, pslite.NoFork)
	node := pslite.Node{Role: pslite.Worker, ID: pslite.Empty, Hostname: "198.18.0.1", Port: 4000}
	join := pslite.Meta{Control: pslite.Control{Cmd: pslite.AddNode, Nodes: []pslite.Node{node}}}
	plain := join.Append(nil, pslite.DMLC)
	scaled := withScale(plain)
	for range 2 {
		o.Handle(&bpf.Record{Kind: bpf.KindMeta, Stream: second.id, Flags: bpf.EndsFrame | bpf.EndsMessage, Length: uint64(len(scaled)), Data: scaled})
	}
	read(2, pslite.Elastic)
	if n := o.Misses().BadMetas; n != 0 {
		t.Errorf("%d metas are said to be bad", n)
	}
}

// withScale returns an ADD_NODE of one node with the field that ps-lite-elastic's nodes
// have more: is_scale (6), between is_recovery (5) and customer_id (10).
func withScale(meta []byte) []byte {
	const before, field = "\x28\x00\x50\x00", "\x28\x00\x30\x00\x50\x00"
	at := bytes.Index(meta, []byte(before))
	out := append(bytes.Clone(meta[:at]), field...)
	out = append(out, meta[at+len(before):]...)
	control := bytes.IndexByte(out, 0x1a) // its tag; then lengths of control, command, tag and length of the node
	out[control+1] += 2
	out[control+5] += 2
	return out
}
