package jobs

import (
	"bytes"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// A proxy that has lost what it knew of a job lets no answer to its own requests
// reach a worker, whose tracker would be written beyond its end: libraries do not
// check timestamps.
func TestStrayAnswersDoNotReachWorkers(t *testing.T) {
	j := require.Value(New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}))(t)
	over := carry(t, j.inbound(netip.MustParseAddrPort("10.0.0.1:9002"), Scope{}, nil), false)
	g := zmtp.NewGreeting(0, 0)
	ready := zmtp.AppendReady(g[:], "DEALER", []byte("ps8"))
	message := func(timestamp int32, request bool, data ...[]byte) []byte {
		m := pslite.Meta{Head: pslite.Empty, Timestamp: timestamp, Pull: true, Request: request, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
		return appendMessage(nil, append([][]byte{m.Append(nil, pslite.DMLC)}, data...))
	}
	keys, values := make([]byte, 8), []byte{1, 2, 3, 4}
	stray, last := message(route.FirstOwn+7, false, keys, values), message(route.LastOwn, false)
	first, second := message(7, false, keys, values), message(route.FirstOwn-1, false, keys, values)
	// Requests of proxies are for servers, which may be on a host that does not know
	// the job yet.
	request := message(route.FirstOwn+8, true)
	sent := slices.Concat(ready, first, stray, last, request, stray, second)
	for i := range sent { // however it is cut
		sayTo(t, over.far, sent[i:i+1])
	}
	require.NoError(t, over.far.CloseWrite())
	got, err := io.ReadAll(over.process)
	if want := slices.Concat(ready, first, request, second); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the process gets %q, %v, want %q", got, err, want)
	}
	if n := j.Folder().StrayAnswers; n != 3 {
		t.Errorf("%d stray answers were dropped, want 3", n)
	}
}
