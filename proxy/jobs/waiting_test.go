package jobs

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// A server that connects to a worker before the node table has come to that
// worker's host, and a worker that does so to a server, and that then say
// nothing: what the router has to say on their connections is said all the same,
// whether it comes before the table or after.
func TestSilentConnectionsJoinWhenTheJobIsLearned(t *testing.T) {
	j := require.Value(New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}))(t)
	worker, server := netip.MustParseAddrPort("10.0.0.1:9002"), netip.MustParseAddrPort("10.0.0.2:9001")
	greeting := func(identity string) []byte {
		g := zmtp.NewGreeting(0, 0)
		return zmtp.AppendReady(g[:], "DEALER", []byte(identity))
	}

	down := j.inbound(worker, Scope{}, nil)
	in := carry(t, down, false)
	sayTo(t, in.far, greeting("ps8"))
	expect(t, in.process, "a greeting", greeting("ps8"))
	sayTo(t, in.process, greeting("ps9"))
	expect(t, in.far, "a greeting", greeting("ps9"))

	up := j.outbound(server, Scope{}, "here")
	out := carry(t, up, false)
	sayTo(t, out.process, greeting("ps9"))
	expect(t, out.far, "a greeting", greeting("ps9"))
	sayTo(t, out.far, greeting("ps8"))
	expect(t, out.process, "a greeting", greeting("ps8"))

	var table pslite.Meta
	table.Control.Cmd = pslite.AddNode
	table.Control.Nodes = []pslite.Node{
		{ID: pslite.SchedulerID, Hostname: "10.0.0.2", Port: 9000},
		{ID: pslite.ServerID(0), Hostname: "10.0.0.2", Port: 9001},
		{ID: pslite.WorkerID(0), Hostname: "10.0.0.1", Port: 9002},
	}
	j.takeNodeTable(&table, worker, testRun, Scope{})
	x := j.named("10.0.0.2:9000", "")
	if x == nil {
		t.Fatal("the job is not known")
	}
	t.Cleanup(x.close)
	said := [][]byte{[]byte("said by the router")}
	x.mu.Lock()
	for _, toWorker := range []bool{true, false} {
		x.enqueueOut(&route.Out{Worker: pslite.WorkerID(0), Server: 0, ToWorker: toWorker, Frames: said})
	}
	if len(x.up) != 1 || len(x.down) != 1 || len(j.waiting) != 0 {
		t.Errorf("%d and %d connections joined, %d wait", len(x.up), len(x.down), len(j.waiting))
	}
	x.mu.Unlock()
	want := appendMessage(nil, said)
	expect(t, in.process, "to the worker", want)
	expect(t, out.far, "to the server", want)
	in.end(t)
	out.end(t)
	if len(x.up)+len(x.down) != 0 {
		t.Error("closed connections are the job's")
	}
}

// Connections that close before their job is known are forgotten.
func TestWaitingConnectionsLeave(t *testing.T) {
	j := require.Value(New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}))(t)
	c := j.inbound(netip.MustParseAddrPort("10.0.0.1:9002"), Scope{}, nil)
	c.ready(pslite.ServerID(0))
	if len(j.waiting) != 1 {
		t.Fatalf("%d wait", len(j.waiting))
	}
	c.Close()
	if len(j.waiting) != 0 {
		t.Errorf("%d wait", len(j.waiting))
	}
}

// A connection that closes while its job is being looked for does not wait for the job.
func TestAClosedConnectionDoesNotWait(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	c := j.inbound(workerAt, Scope{}, nil)
	c.Close()
	c.ready(pslite.ServerID(0))
	if len(j.waiting) > 0 {
		t.Errorf("%d connections wait", len(j.waiting))
	}
}

// connected returns both ends of a connection, which end with the test.
func connected(t *testing.T) (process net.Conn, tcp *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	process = require.Value(net.Dial("tcp", l.Addr().String()))(t)
	accepted := require.Value(l.Accept())(t)
	t.Cleanup(func() { process.Close(); accepted.Close() })
	process.SetDeadline(time.Now().Add(time.Minute))
	return process, accepted.(*net.TCPConn)
}
