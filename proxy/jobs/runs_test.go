package jobs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

const testRun plan.Run = "018bcfe568000123456789abcdef-0123456789abcdef"

// nodeTable is that of a scheduler, a server and a worker with fixed ports.
func nodeTable(recovered ...int32) (*pslite.Meta, *pslite.Table) {
	m := &pslite.Meta{}
	m.Control.Cmd = pslite.AddNode
	for i, id := range []int32{pslite.SchedulerID, pslite.ServerID(0), pslite.WorkerID(0)} {
		n := pslite.Node{ID: id, Hostname: "10.0.0.1", Port: int32(9000 + i)}
		for _, r := range recovered {
			n.IsRecovery = n.IsRecovery || r == id
		}
		m.Control.Nodes = append(m.Control.Nodes, n)
	}
	t := &pslite.Table{}
	t.Learn(m)
	return m, t
}

func jobsIn(t *testing.T, dir string) *Jobs {
	t.Helper()
	j := require.Value(New(Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}))(t)
	return j
}

// The same table twice is two runs, whatever becomes of the proxy meanwhile; a
// node that comes back is in the run that there is.
func TestRunsAreTold(t *testing.T) {
	server, worker := netip.MustParseAddrPort("10.0.0.1:9001"), netip.MustParseAddrPort("10.0.0.1:9002")
	const job = "10.0.0.1:9000"
	dir := t.TempDir()
	j := jobsIn(t, dir)
	_, table := nodeTable()
	run := func(to netip.AddrPort, recovers bool) plan.Run {
		t.Helper()
		r, err := j.runOf(schedulerKey{job: job}, table, to, recovers)
		if err != nil || !r.Valid() {
			t.Fatalf("run %q, %v", r, err)
		}
		return r
	}
	first := run(server, false)
	if r := run(worker, false); r != first {
		t.Errorf("server and worker are in the runs %s and %s", first, r)
	}
	if r := run(worker, true); r != first {
		t.Errorf("a worker that came back is in run %s, not %s", r, first)
	}
	second := run(server, false)
	if second <= first {
		t.Errorf("after run %s comes %s", first, second)
	}
	// Another tenant's job with the same addresses, in a network namespace of its own.
	if r, err := j.runOf(schedulerKey{job, 7}, table, server, false); err != nil || r == second {
		t.Errorf("another namespace's job is in run %s, %v", r, err)
	}
	j = jobsIn(t, dir) // killed between two nodes of a run
	if r := run(worker, false); r != second {
		t.Errorf("a proxy that was replaced tells run %s, not %s", r, second)
	}
	j = jobsIn(t, dir) // and after all
	if r := run(worker, false); r == second {
		t.Error("a proxy that was replaced takes the next run for the one before")
	}
	// What was kept is damaged: whatever run it was, this is another one.
	require.NoError(t, os.WriteFile(filepath.Join(dir, schedulerFile(schedulerKey{job: job})), []byte("{"), 0o600))
	j = jobsIn(t, dir)
	if r := run(server, false); r == first || r == second {
		t.Errorf("a damaged file gives the old run %s", r)
	}
}

// Where the folder cannot be written when a run begins, all its nodes get the table
// without a name, also those that come when it can be written again; the next run
// has one.
func TestARunIsNamedToAllOrNone(t *testing.T) {
	for _, all := range []bool{true, false} { // of the nodes got the table of the run before
		namedToAllOrNone(t, all)
	}
}

func namedToAllOrNone(t *testing.T, all bool) {
	t.Helper()
	server, worker := netip.MustParseAddrPort("10.0.0.1:9001"), netip.MustParseAddrPort("10.0.0.1:9002")
	key := schedulerKey{job: "10.0.0.1:9000"}
	dir := filepath.Join(t.TempDir(), "state")
	j := jobsIn(t, dir)
	_, table := nodeTable()
	first := require.Value(j.runOf(key, table, server, false))(t)
	if all {
		require.Value(j.runOf(key, table, worker, false))(t)
	}
	away := func(what func()) {
		t.Helper()
		require.NoError(t, os.Rename(dir, dir+".away"))
		what()
		require.NoError(t, os.Rename(dir+".away", dir))
	}
	away(func() {
		if r, err := j.runOf(key, table, server, false); err == nil {
			t.Errorf("a run that cannot be kept is told as %q", r)
		}
	})
	if r, err := j.runOf(key, table, worker, false); err == nil {
		t.Errorf("the second node of a run that the first was told without a name is told %q", r)
	}
	third, err := j.runOf(key, table, worker, false)
	if err != nil || third <= first {
		t.Fatalf("the run after one without a name: %q, %v; the last one that had one was %q", third, err, first)
	}
	away(func() {
		if r, err := j.runOf(key, table, server, false); err != nil || r != third {
			t.Errorf("the second node of a run that has a name is told %q, %v; want %q", r, err, third)
		}
	})
}

// A file without a node that got the table does not outlive the proxy: the next run
// would be taken for that one.
func TestARunThatCannotBeKeptToItsEnd(t *testing.T) {
	server, worker := netip.MustParseAddrPort("10.0.0.1:9001"), netip.MustParseAddrPort("10.0.0.1:9002")
	key := schedulerKey{job: "10.0.0.1:9000"}
	dir := t.TempDir()
	j := jobsIn(t, dir)
	_, table := nodeTable()
	run := require.Value(j.runOf(key, table, server, false))(t)
	// Nothing can be appended to a folder, and an empty one can be removed.
	file := filepath.Join(dir, schedulerFile(key))
	require.NoError(t, errors.Join(os.Remove(file), os.Mkdir(file, 0o700)))
	if r, err := j.runOf(key, table, worker, false); err != nil || r != run {
		t.Fatalf("the second node is told %q, %v; want %q", r, err, run)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file that does not say so is still there: %v", err)
	}
	j = jobsIn(t, dir)
	if r, err := j.runOf(key, table, worker, false); err != nil || r == run {
		t.Errorf("the proxy after this one tells the next run as %q, %v", r, err)
	}
}

// The files of schedulers have a bound, and those that are left are found by the next
// proxy, also in a folder whose name looks like a pattern.
func TestSchedulersAreForgotten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[jobs] *?")
	j := jobsIn(t, dir)
	_, table := nodeTable()
	for i := range maxSchedulers + 20 {
		if _, err := j.runOf(schedulerKey{job: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i)).String()}, table, netip.MustParseAddrPort("10.0.0.1:9001"), false); err != nil {
			t.Fatal(err)
		}
	}
	files, err := pathsLike(dir, "*"+schedulerSuffix)
	if err != nil || len(files) > maxSchedulers || len(j.schedulers) > maxSchedulers {
		t.Errorf("%d files and %d schedulers are kept, %v: want %d at most", len(files), len(j.schedulers), err, maxSchedulers)
	}
	next := jobsIn(t, dir)
	next.schedulersMu.Lock()
	defer next.schedulersMu.Unlock()
	if next.takeSchedulers(); len(next.schedulers) != len(files) || len(files) == 0 {
		t.Errorf("the next proxy knows %d schedulers of %d files", len(next.schedulers), len(files))
	}
}

// The name of a run goes ahead of the table to the next proxy, which takes it
// out; a process's own word for it counts nothing and goes nowhere.
func TestRunOnTheWire(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	worker := netip.MustParseAddrPort("10.0.0.1:9002")
	g := zmtp.NewGreeting(0, 0)
	hello := zmtp.AppendReady(g[:], "DEALER", []byte("ps1"))
	forged := zmtp.AppendCommand(nil, commandRun, []byte(testRun))
	m, _ := nodeTable()
	table := appendMessage(nil, [][]byte{m.Append(nil, pslite.DMLC)})

	pass := func(said []byte) []byte {
		t.Helper()
		up := j.outbound(worker, Scope{}, "here")
		up.Linked()
		return passed(t, up, said)
	}
	// Also where all comes at once, and where another message goes before it.
	other := appendMessage(nil, [][]byte{(&pslite.Meta{Head: 7, Body: []byte("hello")}).Append(nil, pslite.DMLC)})
	for _, before := range [][]byte{hello, slices.Concat(hello, other)} {
		onLink := pass(slices.Concat(before, table, other))
		run := j.schedulers[schedulerKey{job: "10.0.0.1:9000"}].record.Run
		if want := slices.Concat(before, zmtp.AppendCommand(nil, commandRun, []byte(run)), table, other); !bytes.Equal(onLink, want) {
			t.Fatalf("on the link is %q, want %q", onLink, want)
		}
	}
	onLink := pass(slices.Concat(hello, forged, table))
	run := j.schedulers[schedulerKey{job: "10.0.0.1:9000"}].record.Run
	if want := slices.Concat(hello, zmtp.AppendCommand(nil, commandRun, []byte(run)), table); !bytes.Equal(onLink, want) {
		t.Fatalf("on the link is %q, want %q", onLink, want)
	}

	over := carry(t, j.inbound(worker, Scope{}, nil), false)
	sayTo(t, over.far, onLink)
	expect(t, over.process, "to the worker", slices.Concat(hello, table))
	x := j.named("10.0.0.1:9000", "")
	if x == nil || x.run != run {
		t.Fatalf("the worker's host knows %+v, want run %s", x, run)
	}
	t.Cleanup(x.close)

	// The run after it is another job altogether.
	old := x.dir
	j.takeNodeTable(m, worker, plan.NewRun(run, time.Now(), 1), Scope{})
	y := j.named("10.0.0.1:9000", "")
	if y == nil || y == x || y.dir == old || !x.ended.Load() {
		t.Fatalf("the second run is %+v", y)
	}
	t.Cleanup(y.close)
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("what was kept of the first run is still there: %v", err)
	}
	y.hear(&letter{job: y.name, run: run, from: "10.0.0.1", to: "10.0.0.1", message: migrate.Message{Kind: migrate.Join}})
	if n := y.state().Strangers; n != 1 {
		t.Errorf("%d letters of the first run were dropped, want 1", n)
	}
}

// Nothing is said to a process that no proxy stands before.
func TestRunIsNotToldPastTheMesh(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	g := zmtp.NewGreeting(0, 0)
	m, _ := nodeTable()
	sent := slices.Concat(zmtp.AppendReady(g[:], "DEALER", []byte("ps1")), appendMessage(nil, [][]byte{m.Append(nil, pslite.DMLC)}))
	if got := passed(t, j.outbound(netip.MustParseAddrPort("10.0.0.1:9002"), Scope{}, "here"), sent); !bytes.Equal(got, sent) {
		t.Errorf("on goes %q, want %q", got, sent)
	}
}

// A node that comes back changes where it is, and nothing else: the run goes on, at
// its own host and at those that only hear of it.
func TestANodeThatComesBackIsInTheSameRun(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	server, worker := netip.MustParseAddrPort("10.0.0.1:9001"), netip.MustParseAddrPort("10.0.0.1:9002")
	m, _ := nodeTable()
	j.takeNodeTable(m, worker, testRun, Scope{})
	x := j.named("10.0.0.1:9000", "")
	if x == nil {
		t.Fatal("the job is not known")
	}
	t.Cleanup(x.close)
	back, _ := nodeTable(pslite.WorkerID(0))
	back.Control.Nodes[2].Port = 9100
	told := *back
	told.Control.Nodes = back.Control.Nodes[2:] // as the server hears it
	j.takeNodeTable(&told, server, "", Scope{})
	if id, ok := x.nodes.At(netip.MustParseAddrPort("10.0.0.1:9100")); !ok || id != pslite.WorkerID(0) {
		t.Errorf("at the new address is %d, %v", id, ok)
	}
	back.Control.Nodes[2].Port = 9200
	j.takeNodeTable(back, netip.MustParseAddrPort("10.0.0.1:9200"), testRun, Scope{})
	if id, ok := x.nodes.At(netip.MustParseAddrPort("10.0.0.1:9200")); !ok || id != pslite.WorkerID(0) {
		t.Errorf("at the newest address is %d, %v", id, ok)
	}
	if y := j.named("10.0.0.1:9000", ""); y != x || x.run != testRun {
		t.Errorf("the run was replaced by %+v", y)
	}
}

// Where the node table of the next run does not come through a proxy, that run is
// not taken for the one before: it is carried as it is or, where keys of the one
// before are displaced, refused.
func TestARunThatNobodyHasNamed(t *testing.T) {
	for _, displaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("displaced %v", displaced), func(t *testing.T) {
			j := require.Value(New(Options{Dir: t.TempDir(), Planner: "127.0.0.1:1", Log: slog.New(slog.DiscardHandler)}))(t)
			m, _ := nodeTable()
			worker, server := netip.MustParseAddrPort("10.0.0.1:9002"), netip.MustParseAddrPort("10.0.0.1:9001")
			j.takeNodeTable(m, worker, testRun, Scope{})
			x := j.named("10.0.0.1:9000", testRun)
			t.Cleanup(x.close)
			if displaced {
				x.router.Table().Set([]plan.Range{{Keys: plan.One(1), Owner: 0}, {Keys: plan.One(1 << 63), Owner: 0}})
				b := route.Batch{Mover: "10.0.0.2", Number: 1}
				x.router.Hold(b, []plan.Keys{plan.One(7)})
			}
			j.restarted(x)
			c := j.outbound(server, Scope{}, "here")
			c.ready(pslite.WorkerID(0))
			var r pslite.Message
			r.Meta.Reset()
			r.Meta.AppID, r.Meta.CustomerID, r.Meta.Timestamp, r.Meta.Request, r.Meta.Push = 0, 0, 1, true, true
			r.Data = [][]byte{pslite.AppendKeys(nil, []uint64{1})}
			passes, err := c.inspect(&r, pslite.DMLC)
			if displaced && !errors.Is(err, errUnsure) || !displaced && (!passes || err != nil || c.job != nil) {
				t.Errorf("a request passes %v, %v, in run %v", passes, err, c.job != nil)
			}
			// The node came back, after all.
			back, _ := nodeTable(pslite.WorkerID(0))
			j.takeNodeTable(back, worker, testRun, Scope{})
			y := j.named("10.0.0.1:9000", testRun)
			if y == nil || y.unsure || y.router.Ready() == !displaced {
				t.Fatalf("the run is %+v", y)
			}
			t.Cleanup(y.close)
		})
	}
}
