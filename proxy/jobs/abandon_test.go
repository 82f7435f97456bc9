package jobs

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// A worker ends with a request in flight: it ends with the connection, and its key moves once what
// the worker sent has settled. A worker that closes a connection because the other end did, lives.
func TestRequestsOfAWorkerThatEnds(t *testing.T) {
	for _, told := range []bool{false, true} {
		x := oneJob(t, Options{})
		connect(t, x) // an answer has come
		c := &requests{jobs: x.jobs, job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
		c.join(x, c.peer)
		if passes, err := x.request(c, messageOf(1, true, []uint64{7}, []float32{1}), pslite.DMLC); !passes || err != nil {
			t.Fatalf("a request passes: %v, %v", passes, err)
		}
		batch := route.Batch{Mover: "10.0.0.9", Number: 1}
		x.locked(func() error {
			x.router.Hold(batch, []plan.Keys{plan.One(7)})
			return nil
		})
		over := carry(t, c, true)
		if told {
			over.conn.EndJob()
		}
		over.end(t)
		if over.err != nil {
			t.Fatal(over.err)
		}
		if n := len(x.router.UnderWay()); (n == 0) == told {
			t.Errorf("told to end: %v: %d requests are in flight", told, n)
		}
		if n := x.state().Abandoned["connection_ended"]; (n == 1) == told || x.flights[c] != nil {
			t.Errorf("told to end: %v: %d requests are counted, the connection is followed: %v", told, n, x.flights[c])
		}
		again := &requests{jobs: x.jobs, job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
		again.join(x, again.peer)
		x.tick()
		if x.router.Quiet(batch) {
			t.Error("the key moves at once: what the worker sent may be on its way")
		}
		x.backSince = x.backSince.Add(-settleFor)
		x.tick()
		if x.router.Quiet(batch) == told {
			t.Errorf("told to end: %v: the key moves: %v", told, !told)
		}
	}
}

// The end of a connection that was replaced says nothing of requests on the one in its place.
func TestRequestsOnTheNextConnectionStay(t *testing.T) {
	x := oneJob(t, Options{})
	old := connect(t, x)[0]
	next := &requests{jobs: x.jobs, job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
	if passes, err := x.request(old, messageOf(1, true, []uint64{7}, []float32{1}), pslite.DMLC); !passes || err != nil {
		t.Fatalf("a request passes: %v, %v", passes, err)
	}
	next.join(x, next.peer)
	if passes, err := x.request(next, messageOf(2, true, []uint64{7}, []float32{1}), pslite.DMLC); !passes || err != nil {
		t.Fatalf("a request passes: %v, %v", passes, err)
	}
	old.hungUp.Store(true)
	old.Close()
	if all := x.router.UnderWay(); len(all) != 1 || x.state().Abandoned["connection_ended"] != 1 {
		t.Errorf("in flight: %v, abandoned: %v", all, x.state().Abandoned)
	}
}

// A worker's host gets the table of a recovery. Where that worker came back, nothing of the process
// before it is left.
func TestAWorkerThatCameBackHasAskedNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		node int // in the table
		gone bool
	}{{"a server", 1, false}, {"the worker", 2, true}} {
		j := jobsIn(t, t.TempDir())
		at := netip.MustParseAddrPort("10.0.0.1:9002")
		var table pslite.Meta
		table.Control.Cmd = pslite.AddNode
		table.Control.Nodes = []pslite.Node{
			{ID: pslite.SchedulerID, Hostname: "10.0.0.2", Port: 9000},
			{ID: pslite.ServerID(0), Hostname: "10.0.0.2", Port: 9001},
			{ID: pslite.WorkerID(0), Hostname: "10.0.0.1", Port: 9002},
		}
		j.takeNodeTable(&table, at, testRun, Scope{})
		x := j.named("10.0.0.2:9000", testRun)
		if x == nil {
			t.Fatal("the job is not known")
		}
		t.Cleanup(x.close)
		worker := &requests{jobs: j, job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
		if passes, err := x.request(worker, messageOf(1, true, []uint64{7}, []float32{1}), pslite.DMLC); !passes || err != nil {
			t.Fatalf("a request passes: %v, %v", passes, err)
		}
		x.locked(func() error {
			x.router.Hold(route.Batch{Mover: "10.0.0.9", Number: 1}, []plan.Keys{plan.One(7)})
			return nil
		})
		require.NoError(t, x.takeRequest(worker, messageOf(2, true, []uint64{7}, []float32{1}), pslite.DMLC))
		p := pair{pslite.WorkerID(0), 0}
		x.mu.Lock()
		say(x, x.up, x.pendingUp, p, []byte("asked"))
		say(x, x.down, x.pendingDown, p, []byte("answered"))
		x.mu.Unlock()
		table.Control.Nodes[c.node].IsRecovery = true
		j.takeNodeTable(&table, at, testRun, Scope{})
		waiting, _ := x.router.Waiting()
		left := len(x.router.UnderWay()) + waiting + len(x.pendingUp) + len(x.pendingDown)
		if (left == 0) != c.gone || left > 0 && left != 4 {
			t.Errorf("%s came back: %d things are left of the worker", c.name, left)
		}
		if s := x.state(); c.gone && (s.Abandoned["worker_restarted"] != 2 || s.Lost != 2) {
			t.Errorf("%s came back: %v requests, %d messages are counted", c.name, s.Abandoned, s.Lost)
		}
	}
}

// A worker was restarted on another host: this one no longer waits for its requests or its connections, and does again when
// a process here has its place.
func TestAWorkerCameBackElsewhere(t *testing.T) {
	for _, resend := range []bool{false, true} {
		j := jobsIn(t, t.TempDir())
		server := netip.MustParseAddrPort("10.0.0.1:9001")
		tell := func(to netip.AddrPort, nodes ...pslite.Node) {
			var table pslite.Meta
			table.Control.Cmd, table.Control.Nodes = pslite.AddNode, nodes
			j.takeNodeTable(&table, to, testRun, Scope{})
		}
		all := []pslite.Node{
			{ID: pslite.SchedulerID, Hostname: "10.0.0.2", Port: 9000},
			{ID: pslite.ServerID(0), Hostname: "10.0.0.1", Port: 9001},
			{ID: pslite.WorkerID(0), Hostname: "10.0.0.1", Port: 9002},
		}
		tell(server, all...)
		tell(netip.MustParseAddrPort("10.0.0.1:9002"), all...)
		x := j.named("10.0.0.2:9000", testRun)
		if x == nil {
			t.Fatal("the job is not known")
		}
		t.Cleanup(x.close)
		if resend {
			x.router.UseResend()
		}
		worker := &requests{jobs: j, job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
		if passes, err := x.request(worker, messageOf(1, true, []uint64{7}, []float32{1}), pslite.DMLC); !passes || err != nil {
			t.Fatalf("a request passes: %v, %v", passes, err)
		}
		tell(server, pslite.Node{ID: pslite.WorkerID(0), Hostname: "10.0.0.3", Port: 9002, IsRecovery: true})
		if got := x.router.Workers(); len(got) > 0 || len(x.router.UnderWay()) > 0 || !slices.Equal(x.otherNames(), []string{"10.0.0.3"}) {
			t.Errorf("resend %v: this host has workers %v, waits for %v, and other hosts with workers are %v", resend, got, x.router.UnderWay(), x.otherNames())
		}
		all[2].Port, all[2].IsRecovery = 9003, true
		tell(netip.MustParseAddrPort("10.0.0.1:9003"), all...)
		if got := x.router.Workers(); !slices.Equal(got, []int32{pslite.WorkerID(0)}) || len(x.otherNames()) > 0 {
			t.Errorf("resend %v: the worker is back, but this host has workers %v, and other hosts with workers are %v", resend, got, x.otherNames())
		}
	}
}

// A worker came back at another address of its host, and the host's server hears of it first. From
// then on servers may connect to the new process: nothing of the process before it is left that
// could be brought to it. Whenever the table comes again, what the new process has asked stays.
func TestAWorkerCameBackAndAServerHearsFirst(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	const scheduler = "10.0.0.2:9000"
	server, first, next := netip.MustParseAddrPort("10.0.0.1:9001"), netip.MustParseAddrPort("10.0.0.1:9002"), netip.MustParseAddrPort("10.0.0.1:9003")
	nodes := func(worker netip.AddrPort, back bool) (all []pslite.Node) {
		return []pslite.Node{
			{ID: pslite.SchedulerID, Hostname: "10.0.0.2", Port: 9000},
			{ID: pslite.ServerID(0), Hostname: "10.0.0.1", Port: 9001},
			{ID: pslite.WorkerID(0), Hostname: "10.0.0.1", Port: int32(worker.Port()), IsRecovery: back},
		}
	}
	tell := func(to netip.AddrPort, run plan.Run, nodes ...pslite.Node) {
		var table pslite.Meta
		table.Control.Cmd, table.Control.Nodes = pslite.AddNode, nodes
		j.takeNodeTable(&table, to, run, Scope{})
	}
	tell(server, testRun, nodes(first, false)...)
	tell(first, testRun, nodes(first, false)...)
	x := j.named(scheduler, testRun)
	if x == nil {
		t.Fatal("the job is not known")
	}
	t.Cleanup(x.close)
	worker, p := &requests{jobs: j, job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}, pair{pslite.WorkerID(0), 0}
	ask := func(timestamp int32) {
		t.Helper()
		if passes, err := x.request(worker, messageOf(timestamp, true, []uint64{7}, []float32{1}), pslite.DMLC); !passes || err != nil {
			t.Fatalf("request %d passes: %v, %v", timestamp, passes, err)
		}
	}
	ask(1)
	// A connection of the server to the old process, with an answer that nobody has read.
	old := &answers{jobs: j, job: x, sender: pslite.ServerID(0), peer: pslite.WorkerID(0), destination: first}
	old.join(x, old.peer)
	x.mu.Lock()
	say(x, x.down, x.pendingDown, p, []byte("answered"))
	x.mu.Unlock()
	tell(server, "", nodes(next, true)[2])
	again := &answers{jobs: j, job: x, sender: pslite.ServerID(0), peer: pslite.WorkerID(0), destination: next}
	again.join(x, again.peer)
	if n := len(x.router.UnderWay()) + len(again.queue) + len(x.pendingDown); n > 0 || x.state().Abandoned["worker_restarted"] != 1 {
		t.Errorf("%d things are left of the old process; %v", n, x.state().Abandoned)
	}
	tell(next, testRun, nodes(next, true)...)
	if x.down[p] != again || !again.open() {
		t.Error("the connection to the new process is not used")
	}
	ask(0)
	tell(server, "", nodes(next, true)[2])
	if n := len(x.router.UnderWay()); n != 1 || x.down[p] != again {
		t.Errorf("%d requests of the new process are in flight, want one", n)
	}
}

// A connection ends over which a move has pushed. The move is given up, and nothing moves before
// what was sent has settled.
func TestPushesOfMovesEndWithTheirConnection(t *testing.T) {
	x := oneJob(t, Options{})
	all := connect(t, x)
	if err := x.locked(func() error {
		return x.site.Begin(migrate.Move{From: 0, To: 1, Keys: []uint64{7}, Handler: migrate.Adds})
	}); err != nil {
		t.Fatal(err)
	}
	value := messageOf(onlyMessage(t, all[0].queue).Meta.Timestamp, false, []uint64{7}, []float32{5})
	value.Meta.Request = false
	require.NoError(t, x.takeAnswer(&answers{job: x, sender: pslite.ServerID(0), peer: pslite.WorkerID(0)}, value, pslite.DMLC))
	if len(all[1].queue) != 1 || x.settles() {
		t.Fatalf("%d messages for the new owner, want a push; settles: %v", len(all[1].queue), x.settles())
	}
	all[1].Close()
	if x.site.Moving() > 0 || !x.settles() || len(x.router.Holds()) > 0 {
		t.Errorf("%d moves go on, settles: %v, held: %v", x.site.Moving(), x.settles(), x.router.Holds())
	}
}
