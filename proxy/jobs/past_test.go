package jobs

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// asked counts messages for servers.
func asked(to []*requests) (n int) {
	for _, c := range to {
		n += len(c.queue)
	}
	return n
}

// While a server's connection to a worker goes past the proxy, as one does that was
// made while the proxy was away, no server is asked anything in the worker's name:
// the worker would get the answer. What was to be moved is refused after a while.
func TestNothingIsAskedPastTheProxy(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Probe: true})
	x.jobs.plans.listed, x.used = true, true
	to := connect(t, x)
	at := pair{pslite.WorkerID(0), 1}
	batch := uint64(0)
	accept := func() {
		batch++
		x.locked(func() error {
			x.accept(&api.MoveBatch{Batch: batch, From: 0, To: 1, First: []uint64{7}})
			return nil
		})
	}
	for _, line := range []struct {
		name         string
		leave, again func()
	}{
		{"a server's", func() { x.down[at].Close() }, func() { back(t, x, 1) }},
		{"a worker's", func() { to[1].Close() }, func() { to = append(to, connect(t, x)...) }},
	} {
		line.leave()
		accept()
		for range 3 {
			x.tick()
		}
		if n := asked(to); n > 0 || x.probe != nil || len(x.work) != 1 {
			t.Errorf("without %s connection servers are asked %d times, probe %v, %d groups of keys wait", line.name, n, x.probe, len(x.work))
		}
		x.pastSince = x.pastSince.Add(-pastAfter)
		x.tick()
		reports := x.reports()
		r := reports[len(reports)-1]
		if len(x.work) > 0 || len(r.GetRefused()) != 1 || r.GetRefused()[0].GetReason() != "past" {
			t.Errorf("without %s connection for long %d groups wait, the planner hears %v", line.name, len(x.work), r)
		}
		line.again()
		x.locked(func() error {
			if !x.mayAsk(time.Now()) {
				t.Errorf("with all connections: %v", x.carried())
			}
			return nil
		})
	}
	accept()
	x.tick()
	if asked(to) != 1 || x.probe == nil {
		t.Errorf("with all connections servers are asked %d times", asked(to))
	}
}

// No key is held, and none may be displaced, before the proxy of each other worker's host
// has said something in this run: one that knows nothing of it would never be quiet, and
// a proxy that was killed after that would wait for it for ever.
func TestNoMoveBeforeAllHostsKnowTheRun(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	x.jobs.plans.listed, x.used = true, true
	var m pslite.Meta
	m.Control.Cmd = pslite.AddNode
	m.Control.Nodes = []pslite.Node{{ID: pslite.WorkerID(1), Hostname: "10.0.0.2", Port: 9009}}
	x.nodes.Learn(&m)
	x.site.SetOthers(x.otherNames())
	connect(t, x)
	accept := func(batch uint64) {
		x.locked(func() error {
			x.accept(&api.MoveBatch{Batch: batch, From: 0, To: 1, First: []uint64{7}})
			return nil
		})
	}
	accept(1)
	x.tick()
	if x.site.Moving() > 0 || len(x.work) != 1 || x.displaced {
		t.Errorf("before the other host was heard of %d moves are under way, %d wait, keys may be displaced: %v", x.site.Moving(), len(x.work), x.displaced)
	}
	x.unheardSince = x.unheardSince.Add(-pastAfter)
	x.tick()
	reports := x.reports()
	r := reports[len(reports)-1]
	if len(x.work) > 0 || len(r.GetRefused()) != 1 || r.GetRefused()[0].GetReason() != "past" || !strings.Contains(r.GetRefused()[0].GetMessage(), "10.0.0.2") {
		t.Errorf("without the other host for long %d groups wait, the planner hears %v", len(x.work), r)
	}
	accept(2)
	said := letter{job: x.name, run: x.run, from: "10.0.0.2", to: "10.0.0.1", message: migrate.Message{Kind: migrate.Holding}}
	other := said
	other.run = "01a209d86ec53720660bbdf68f0f-e63acea2aca9e7de"
	x.hear(&other)
	x.locked(func() error {
		if x.known(time.Now().Add(-pastAfter)) {
			t.Error("a letter of another run is taken for one of this")
		}
		return nil
	})
	x.hear(&said)
	accept(3)
	x.tick()
	if x.site.Moving() != 1 {
		t.Errorf("%d moves are under way when all hosts know the run", x.site.Moving())
	}
}

// A move waits for requests under way until the proxy sees all of them.
func TestNoMoveBesideWhatIsNotSeen(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	x.jobs.plans.listed, x.used = true, true
	to := connect(t, x)
	var m pslite.Message
	m.Meta.Request, m.Meta.Push, m.Meta.Timestamp = true, true, 1
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{7}), make([]byte, 4)}
	if passes, err := x.request(to[0], &m, pslite.DMLC); !passes || err != nil {
		t.Fatalf("a request passes: %v, %v", passes, err)
	}
	x.locked(func() error {
		x.accept(&api.MoveBatch{Batch: 1, From: 0, To: 1, First: []uint64{7}})
		return nil
	})
	x.tick()
	down := x.down[pair{pslite.WorkerID(0), 0}]
	x.down[pair{pslite.WorkerID(0), 1}].Close()
	m.Meta.Request = false
	require.Value(x.answer(down, &m, pslite.DMLC))(t)
	x.tick()
	if n := asked(to); n > 0 || x.site.Moving() != 1 {
		t.Errorf("%d moves are under way, servers were asked %d times while a connection was missing", x.site.Moving(), n)
	}
	back(t, x, 1)
	x.tick()
	if n := asked(to); n != 1 {
		t.Errorf("servers were asked %d times when all connections were there", n)
	}
}

// An answer to what a proxy has asked ends a server's connection that leads past
// the mesh; all else passes there, and everything over a link.
func TestAnswersForProxiesDoNotGoPast(t *testing.T) {
	for _, c := range []struct {
		name      string
		sender    int32
		linked    bool
		timestamp int32
		request   bool
		ends      bool
	}{
		{"to a worker's request", pslite.ServerID(0), false, route.FirstOwn - 1, false, false},
		{"to a part", pslite.ServerID(0), false, route.FirstOwn, false, true},
		{"to a last push", pslite.ServerID(0), false, route.LastOwn, false, true},
		{"to a move's, over a link", pslite.ServerID(0), true, route.FirstExact, false, false},
		{"of a worker", pslite.WorkerID(0), false, route.FirstExact, false, false},
		{"a part itself", pslite.WorkerID(0), false, route.FirstExact, true, false},
	} {
		x := oneJob(t, Options{})
		o := &requests{jobs: x.jobs, sender: c.sender, linked: c.linked}
		var m pslite.Message
		m.Meta.Reset()
		m.Meta.Push, m.Meta.Request, m.Meta.Timestamp = true, c.request, c.timestamp
		m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
		passes, err := o.inspect(&m, pslite.DMLC)
		if passes == c.ends || (err != nil) != c.ends || err != nil && reason.Of(err) != reason.Route {
			t.Errorf("an answer %s passes: %v, %v", c.name, passes, err)
		}
	}
}

// A host whose server was asked something by a proxy fails closed until it must
// have answered, also where no key is displaced and no worker runs, for whose
// connections the job would count as over.
func TestAHostThatOwesAnAnswerIsGuarded(t *testing.T) {
	h := &heard{t, map[string]bool{}, time.Now().Add(-time.Hour)}
	x := oneJob(t, Options{Guard: h})
	from := &answers{jobs: x.jobs, job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
	ask := func(timestamp int32) {
		var m pslite.Message
		m.Meta.Reset()
		m.Meta.Pull, m.Meta.Request, m.Meta.Timestamp = true, true, timestamp
		m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
		if passes, err := from.inspect(&m, pslite.DMLC); !passes || err != nil {
			t.Fatalf("a request passes: %v, %v", passes, err)
		}
	}
	x.adopt(from)
	x.inUse = time.Now().Add(-unusedAfter) // as without workers, whose connections count alone
	if ask(7); h.needs[x.runName()] {
		t.Error("a worker's own request has connections fail")
	}
	if ask(route.FirstExact); !h.needs[x.runName()] {
		t.Error("connections may go past the proxy while a server owes an answer")
	}
	if x.guard(); !h.needs[x.runName()] {
		t.Error("they may a moment later")
	}
	asked := x.asked
	x.asked = x.asked.Add(-owesFor)
	if x.guard(); h.needs[x.runName()] {
		t.Error("they must not long after it")
	}
	x.asked = asked
	x.removeConnection(from)
	if x.guard(); !h.needs[x.runName()] {
		t.Error("connections may go past the proxy just after one has closed")
	}
	x.left = x.left.Add(-unusedAfter)
	if x.guard(); h.needs[x.runName()] {
		t.Error("they must not when the servers have ended")
	}
}

// What a proxy has asked a server shortly before this host's proxy was killed, the
// next one knows: connections do not go past it before the answer must have come.
func TestATakenUpJobOwesAnAnswer(t *testing.T) {
	before := oneJob(t, Options{Planner: "127.0.0.1:1"})
	again := func() (*job, *heard) {
		t.Helper()
		o := before.jobs.opts
		h := &heard{t, map[string]bool{}, time.Now()}
		o.Guard = h
		x := remembered(t, before, o)
		x.inUse = time.Now().Add(-unusedAfter)
		x.guard()
		return x, h
	}
	if x, h := again(); h.needs[x.runName()] {
		t.Error("connections fail though no proxy has asked a server anything")
	}
	files := func() int {
		entries := require.Value(os.ReadDir(before.dir))(t)
		return len(entries)
	}
	had := files()
	before.noteOwn()
	if n := files(); n != had {
		t.Errorf("%d files instead of %d: on a full disk it would not be known after a restart", n, had)
	}
	x, h := again()
	if !h.needs[x.runName()] {
		t.Error("connections may go past the proxy while a server may owe an answer")
	}
	x.asked = x.asked.Add(-owesFor)
	if x.guard(); h.needs[x.runName()] {
		t.Error("they must not long after it")
	}
	before.keepAsked(time.Now().Add(time.Hour))
	if x, h := again(); !h.needs[x.runName()] || x.asked.After(time.Now()) {
		t.Errorf("with a clock that was set back connections fail until %v", x.asked.Add(owesFor))
	}
}

// That a proxy after this one would not know of it is said once a job.
func TestAskedThatIsNotKeptIsSaidOnce(t *testing.T) {
	var said bytes.Buffer
	x := oneJob(t, Options{Log: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	require.NoError(t, x.save())
	count := func(when string, want int) {
		t.Helper()
		if n := strings.Count(said.String(), "owes a proxy an answer"); n != want {
			t.Errorf("%s it is said %d times, want %d: %s", when, n, want, said.String())
		}
	}
	x.noteOwn()
	count("while it is kept", 0)
	require.NoError(t, os.Remove(filepath.Join(x.dir, askedFile)))
	for range 3 {
		x.asked = time.Time{}
		x.noteOwn()
	}
	count("when it is not", 1)
}

// A proxy that takes up where another was killed says nothing is under way only when
// it carries all connections, however early it is asked.
func TestATakenUpJobIsBlindAtFirst(t *testing.T) {
	before := oneJob(t, Options{Planner: "127.0.0.1:1"})
	x := remembered(t, before, before.jobs.opts)
	if x.router.Carried() {
		t.Error("it sees all before any connection has come")
	}
	connect(t, x)
	x.tick()
	if x.router.Carried() {
		t.Error("it sees all just after they have come")
	}
	x.backSince = x.backSince.Add(-settleFor)
	x.inUse = time.Now()
	if x.tick(); !x.router.Carried() {
		t.Errorf("it does not see all when they have: %v", x.carried())
	}
}

// After a proxy was away nothing moves until its workers had time to say again what
// went past it meanwhile, from when the last connection is back.
func TestWhatWentPastIsWaitedFor(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	connect(t, x)
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.carried(); err != nil {
		t.Errorf("a proxy that was there all along waits: %v", err)
	}
	x.resumed = true
	at := pair{pslite.WorkerID(0), 1}
	up, down := x.up[at], x.down[at]
	for name, leave := range map[string]func(){"a worker's": func() { delete(x.up, at) }, "a server's": func() { delete(x.down, at) }} {
		if err := x.carried(); !errors.Is(err, errSettling) {
			t.Errorf("just after all connections are back: %v", err)
		}
		x.backSince = x.backSince.Add(-settleFor * 2 / 3)
		leave()
		if err := x.carried(); err == nil || errors.Is(err, errSettling) {
			t.Errorf("with %s connection gone: %v", name, err)
		}
		x.up[at], x.down[at] = up, down
		if err := x.carried(); !errors.Is(err, errSettling) {
			t.Errorf("just after %s connection is back: %v", name, err)
		}
		x.backSince = x.backSince.Add(-settleFor * 2 / 3)
		if err := x.carried(); !errors.Is(err, errSettling) {
			t.Errorf("it counts from before %s connection was gone: %v", name, err)
		}
		x.backSince = time.Time{}
	}
	if err := x.carried(); !errors.Is(err, errSettling) {
		t.Errorf("just after all connections are back: %v", err)
	}
	x.backSince = x.backSince.Add(-settleFor)
	if err := x.carried(); err != nil {
		t.Errorf("long after: %v", err)
	}
	x.backSince = time.Time{}
	if err := x.carried(); err != nil {
		t.Errorf("when one has been made anew since: %v", err)
	}
}
