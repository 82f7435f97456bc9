package observe

import (
	"net/netip"
	"testing"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// The first answer comes while it is not known yet whose connection it came on. Its
// request is not said to wait for ever: the next answer there ends its wait.
func TestAnswerBeforeItsSenderIsKnown(t *testing.T) {
	scheduler := netip.MustParseAddrPort("198.18.0.1:9000")
	server, worker := netip.MustParseAddrPort("198.18.0.2:40001"), netip.MustParseAddrPort("198.18.0.1:40002")
	o := New(Options{IngressTimes: true, Locality: counts.DefaultLocalityOptions})
	j := o.job(scheduler)
	j.serverCount = 2 // of which one is known
	asker := j.addNode(roleWorker)
	asker.setAddress(worker)
	asker.setID(9, fromIdentity)
	out := &stream{id: bpf.NewStreamID(1, bpf.Egress), from: netip.MustParseAddrPort("198.18.0.1:50000"), to: server, synced: true, sender: asker}
	in := &stream{id: bpf.NewStreamID(2, bpf.Ingress), from: netip.MustParseAddrPort("198.18.0.2:50001"), to: worker, synced: true, timing: true}
	waiting := func() int {
		_, waits := j.Sums.Now()
		return len(waits)
	}
	meta := func(ts int32, request bool) *pslite.Meta {
		return &pslite.Meta{Request: request, Push: true, Timestamp: ts}
	}
	answerer := j.addNode(roleServer)
	answerer.setAddress(server)
	record := bpf.Record{}
	for ts := range int32(2) {
		o.beginMessage(out, &record, meta(ts, true))
		if waiting() != 1 {
			t.Fatal("a request does not wait for its answer")
		}
		o.time(in, &record, meta(ts, false))
		in.sender = answerer // from now on it is known
		if want := 1 - int(ts); waiting() != want {
			t.Fatalf("%d requests wait after answer %d, want %d", waiting(), ts, want)
		}
	}
}
