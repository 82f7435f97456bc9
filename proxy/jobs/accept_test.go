package jobs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/test/require"
)

// proxyAt is the proxy of one host.
type proxyAt string

func (p proxyAt) At(_ context.Context, host netip.Addr) error {
	if string(p) != host.String() {
		return errors.New("another proxy is there")
	}
	return nil
}

// Of the jobs of these tests the scheduler is at 10.0.0.1:9000 and the local
// worker at 10.0.0.9:9001.
var (
	mine        = Scope{Cgroup: 1, Netns: 7}
	others      = Scope{Cgroup: 2, Netns: 7}
	elsewhere   = Scope{Cgroup: 3, Netns: 8}
	schedulerAt = netip.MustParseAddrPort("10.0.0.1:9000")
	workerAt    = netip.MustParseAddrPort("10.0.0.9:9001")
)

// tableOf is a node table with servers and the worker at those ports.
func tableOf(port int32, servers int) *pslite.Message {
	var m pslite.Message
	m.Meta.Control.Cmd = pslite.AddNode
	m.Meta.Control.Nodes = []pslite.Node{
		{ID: pslite.SchedulerID, Hostname: "10.0.0.1", Port: 9000},
		{ID: pslite.WorkerID(0), Hostname: "10.0.0.9", Port: port},
	}
	for i := range servers {
		m.Meta.Control.Nodes = append(m.Meta.Control.Nodes, pslite.Node{ID: pslite.ServerID(i), Hostname: "10.0.0.2", Port: int32(9100 + i)})
	}
	return &m
}

// tell has a node table come over a link from a proxy, in the name of the
// scheduler.
func tell(t *testing.T, j *Jobs, m *pslite.Message, to netip.AddrPort, s Scope, from Peer) error {
	t.Helper()
	c := j.inbound(to, s, from)
	c.ready(pslite.SchedulerID)
	c.run = testRun
	_, err := c.inspect(m, pslite.DMLC)
	return err
}

// dialFrom has a process of a scope connect to a destination.
func dialFrom(t *testing.T, j *Jobs, to netip.AddrPort, s Scope) *requests {
	t.Helper()
	return j.outbound(to, s, "here")
}

func TestNodeTablesComeFromTheScheduler(t *testing.T) {
	for _, c := range []struct {
		name    string
		dialled bool // the scheduler
		named   bool // by the agent
		from    Peer
		known   bool // the job afterwards
		refused bool // the connection
	}{
		{"from the scheduler's host", true, false, proxyAt("10.0.0.1"), true, false},
		{"to a process that the agent found late", false, true, proxyAt("10.0.0.1"), true, false},
		{"from another host", true, false, proxyAt("10.0.0.66"), false, true},
		{"of a scheduler that nobody has dialled", false, false, proxyAt("10.0.0.1"), false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := jobsIn(t, t.TempDir())
			if c.dialled {
				dialFrom(t, j, schedulerAt, mine)
			}
			if c.named {
				j.Names(mine, schedulerAt.String())
			}
			err := tell(t, j, tableOf(9001, 2), workerAt, mine, c.from)
			x := j.named("10.0.0.1:9000", testRun)
			if x != nil {
				t.Cleanup(x.close)
			}
			if (x != nil) != c.known || (err != nil) != c.refused || err != nil && reason.Of(err) != reason.Forged {
				t.Errorf("the job is known: %v, error %v", x != nil, err)
			}
			if n := j.Refused()["table"]; (n == 1) == c.known {
				t.Errorf("%d tables are counted as refused", n)
			}
		})
	}
}

// A process may meet its scheduler while its proxy is away, and no agent tells of it in
// time. Where the run before at that address was this scope's, its table is believed.
func TestTableOfTheNextRunAfterAKill(t *testing.T) {
	dir := t.TempDir()
	j := jobsIn(t, dir)
	dialFrom(t, j, schedulerAt, mine)
	require.NoError(t, tell(t, j, tableOf(9001, 2), workerAt, mine, proxyAt("10.0.0.1")))
	before := j.named("10.0.0.1:9000", testRun)
	if before == nil {
		t.Fatal("the first run is not known")
	}
	before.locked(before.save)
	before.close()

	j = jobsIn(t, dir)
	require.NoError(t, j.remember())
	t.Cleanup(func() {
		for _, x := range j.allJobs() {
			x.close()
		}
	})
	next := tableOf(9001, 2)
	next.Meta.Control.Nodes[2].Port++ // the next run's servers are elsewhere
	if err := tell(t, j, next, workerAt, others, proxyAt("10.0.0.1")); err != nil || j.Refused()["table"] != 1 {
		t.Errorf("another scope's: %v, %d refused", err, j.Refused()["table"])
	}
	require.NoError(t, tell(t, j, next, workerAt, mine, proxyAt("10.0.0.1")))
	server := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), uint16(next.Meta.Control.Nodes[2].Port))
	if x, _ := j.findJob(server, mine, nil); x == nil || x.resumed {
		t.Errorf("the next run is not known: %+v", x)
	}
}

// What processes of one scope say does nothing to a job of another, though it
// names the same scheduler, and requests find the job of their own scope.
func TestJobsOfOtherScopesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	j := jobsIn(t, dir)
	for _, s := range []Scope{mine, others, elsewhere} {
		dialFrom(t, j, schedulerAt, s)
	}
	expect := func(what string, err error, jobs int) {
		t.Helper()
		if err != nil || len(j.allJobs()) != jobs {
			t.Errorf("%s: %v, and %d jobs are known, want %d", what, err, len(j.allJobs()), jobs)
		}
	}
	forgedAt := netip.MustParseAddrPort("10.0.0.9:6666")
	expect("the job's", tell(t, j, tableOf(9001, 2), workerAt, mine, proxyAt("10.0.0.1")), 1)
	x := j.named("10.0.0.1:9000", testRun)
	t.Cleanup(func() {
		for _, x := range j.allJobs() {
			x.close()
		}
	})
	expect("another scope's", tell(t, j, tableOf(6666, 4), forgedAt, others, proxyAt("10.0.0.1")), 2)
	expect("another namespace's", tell(t, j, tableOf(9001, 3), workerAt, elsewhere, proxyAt("10.0.0.1")), 3)
	if x.ended.Load() || x.servers != 2 {
		t.Fatal("the job was replaced")
	}
	server := netip.MustParseAddrPort("10.0.0.2:9100")
	for s, servers := range map[Scope]int{mine: 2, others: 4, elsewhere: 3} {
		if y, _ := j.findJob(server, s, nil); y == nil || y.servers != servers {
			t.Errorf("scope %v finds %+v, want a job with %d servers", s, y, servers)
		}
	}
	if y, _ := j.findJob(server, Scope{Cgroup: 99, Netns: 7}, nil); y != nil {
		t.Errorf("a scope that takes part in nothing finds %s", y.key)
	}

	// So it is after a restart.
	for _, y := range j.allJobs() {
		y.close()
	}
	j = jobsIn(t, dir)
	if n := len(j.allJobs()); n != 3 {
		t.Errorf("after a restart %d jobs are known, want 3", n)
	}
	for s, servers := range map[Scope]int{mine: 2, others: 4, elsewhere: 3} {
		if y, _ := j.findJob(server, s, nil); y == nil || y.servers != servers {
			t.Errorf("after a restart scope %v finds %+v, want a job with %d servers", s, y, servers)
		}
	}
}

// A second cgroup of the same network namespace whose processes get the same
// table takes part in the same job.
func TestScopesOfOneJob(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	dialFrom(t, j, schedulerAt, mine)
	dialFrom(t, j, schedulerAt, others)
	server := tableOf(9001, 2)
	server.Meta.Control.Nodes[2].Hostname = "10.0.0.9"
	for at, s := range map[netip.AddrPort]Scope{workerAt: mine, netip.MustParseAddrPort("10.0.0.9:9100"): others} {
		require.NoError(t, tell(t, j, server, at, s, proxyAt("10.0.0.1")))
	}
	all := j.allJobs()
	if len(all) != 1 || !all[0].scopes[mine] || !all[0].scopes[others] || len(all[0].local) != 2 {
		t.Fatalf("known are %+v, want one job in two cgroups", all)
	}
	all[0].close()
}

// A connection that says it comes from a server is that server's only if it
// comes from its host.
func TestAnswersComeFromTheirServer(t *testing.T) {
	for from, refused := range map[proxyAt]bool{"10.0.0.2": false, "10.0.0.66": true} {
		j := jobsIn(t, t.TempDir())
		dialFrom(t, j, schedulerAt, mine)
		require.NoError(t, tell(t, j, tableOf(9001, 2), workerAt, mine, proxyAt("10.0.0.1")))
		x := j.allJobs()[0]
		t.Cleanup(x.close)
		c := j.inbound(workerAt, mine, from)
		c.ready(pslite.ServerID(0))
		var m pslite.Message
		m.Meta.Push = true
		_, err := c.inspect(&m, pslite.DMLC)
		if (err != nil) != refused || (len(x.down) == 0) != refused {
			t.Errorf("from %s: %v, and %d connections joined", from, err, len(x.down))
		}
		if n := j.Refused()["node"]; (n > 0) != refused {
			t.Errorf("from %s: %d are counted as refused", from, n)
		}
	}
}

// A process that tells a node table must be where that says the scheduler is,
// and none may claim to be a node of another scope of its network namespace.
func TestProcessesSpeakForThemselves(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	j.opts.Owner = func(_ context.Context, netns uint64, at netip.AddrPort) (uint64, bool, error) {
		if netns == mine.Netns && at == schedulerAt {
			return mine.Cgroup, true, nil
		}
		return 0, false, nil
	}
	for s, refused := range map[Scope]bool{mine: false, others: true, elsewhere: true, {}: false} {
		c := dialFrom(t, j, workerAt, s)
		c.ready(pslite.SchedulerID)
		_, err := c.inspect(tableOf(9001, 2), pslite.DMLC)
		if (err != nil) != refused {
			t.Errorf("scope %v tells a table: %v", s, err)
		}
	}
	dialFrom(t, j, schedulerAt, mine)
	require.NoError(t, tell(t, j, tableOf(9001, 2), workerAt, mine, proxyAt("10.0.0.1")))
	x := j.allJobs()[0]
	t.Cleanup(x.close)
	var push pslite.Message
	push.Meta.Request, push.Meta.Push = true, true
	for s, refused := range map[Scope]bool{mine: false, others: true, elsewhere: false} {
		c := dialFrom(t, j, netip.MustParseAddrPort("10.0.0.2:9100"), s)
		c.ready(pslite.WorkerID(0))
		if _, err := c.inspect(&push, pslite.DMLC); (err != nil) != refused {
			t.Errorf("scope %v says it is the worker: %v", s, err)
		}
		if joined := x.up[pair{pslite.WorkerID(0), 0}] == c; joined != (s == mine) {
			t.Errorf("scope %v: its connection became the worker's: %v", s, joined)
		}
	}
}

// That a node has come back only its job's scheduler says, though the table that
// says so does not name it: after a restart of the proxy too, and to a node that
// has come back itself.
func TestRecoveriesAreTheSchedulersToTell(t *testing.T) {
	dir := t.TempDir()
	owner := func(_ context.Context, netns uint64, at netip.AddrPort) (uint64, bool, error) {
		return mine.Cgroup, true, nil
	}
	j := jobsIn(t, dir)
	j.opts.Owner = owner
	cameBackAt := netip.MustParseAddrPort("10.0.0.9:9555")
	link := func(to netip.AddrPort, s Scope) *requests {
		c := dialFrom(t, j, to, s)
		c.Linked()
		c.ready(pslite.SchedulerID)
		return c
	}
	whole := link(workerAt, mine)
	require.Value(whole.inspect(tableOf(9001, 2), pslite.DMLC))(t)
	again := tableOf(9555, 2)
	again.Meta.Control.Nodes[1].IsRecovery = true
	require.Value(link(cameBackAt, mine).inspect(again, pslite.DMLC))(t)
	var partial pslite.Message
	partial.Meta.Control.Cmd = pslite.AddNode
	partial.Meta.Control.Nodes = []pslite.Node{{ID: pslite.ServerID(0), Hostname: "10.0.0.66", Port: 6666, IsRecovery: true}}
	for _, round := range []string{"the same proxy", "the next one"} {
		server := netip.MustParseAddrPort("10.0.0.2:9100")
		stranger := netip.MustParseAddrPort("10.0.0.2:4711")
		for _, c := range []struct {
			to      netip.AddrPort
			by      Scope
			refused bool
		}{
			{workerAt, mine, false}, {workerAt, others, true},
			{server, mine, false}, {server, others, true},
			{cameBackAt, mine, false}, {cameBackAt, others, round == "the same proxy"},
			{stranger, others, false}, // no job's: the other side judges
		} {
			_, err := link(c.to, c.by).inspect(&partial, pslite.DMLC)
			if (err != nil) != c.refused || err != nil && reason.Of(err) != reason.Forged {
				t.Errorf("%s: scope %v tells %s of a node that came back: %v", round, c.by, c.to, err)
			}
		}
		if round == "the same proxy" {
			j = jobsIn(t, dir)
			j.opts.Owner = owner
		}
	}
}

// Letters count from the host that they name, at the address that they name.
func TestLettersComeFromTheirHost(t *testing.T) {
	x := oneJob(t, Options{})
	l := &letter{job: x.name, run: testRun, from: "10.0.0.2", to: "10.0.0.1", message: migrate.Message{Kind: migrate.Join}}
	for _, c := range []struct {
		from proxyAt
		at   string
		to   string
		ok   bool
	}{
		{"10.0.0.2", "10.0.0.1", "10.0.0.1", true},
		{"10.0.0.66", "10.0.0.1", "10.0.0.1", false},
		{"10.0.0.2", "10.0.0.1", "10.0.0.3", false},
	} {
		v := visitor{jobs: x.jobs, from: c.from, at: c.at, known: map[string]bool{}}
		for range 2 { // a known answer is not asked for again
			l.to = c.to
			if err := v.believe(x, l); (err == nil) != c.ok {
				t.Errorf("from %s at %s for %s: %v", c.from, c.at, c.to, err)
			}
		}
	}
	if n := x.jobs.Refused()["letter"]; n != 4 {
		t.Errorf("%d letters are counted as refused, want 4", n)
	}
}

// Jobs and their nodes are bounded, by scope and in all; one that is over makes
// room, one that is not stays.
func TestJobsAreBounded(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	t.Cleanup(func() {
		for _, x := range j.allJobs() {
			x.close()
		}
	})
	add := func(i int, s Scope) {
		m := tableOf(9001, 1)
		m.Meta.Control.Nodes[0].Port = int32(10000 + i)
		// To a server: it has no ledger, which would take room on the disk.
		j.takeNodeTable(&m.Meta, netip.MustParseAddrPort("10.0.0.2:9100"), plan.Run(fmt.Sprintf("%016x", i)), s)
	}
	for i := range maxJobsOfScope + 10 {
		add(i, mine)
	}
	if n := len(j.allJobs()); n != maxJobsOfScope {
		t.Errorf("%d jobs of a scope are known, want %d", n, maxJobsOfScope)
	}
	if n := j.Refused()["job"]; n != 10 {
		t.Errorf("%d jobs are counted as refused, want 10", n)
	}
	victim := j.allJobs()[0]
	// Its processes may come back, and must find where its keys are.
	victim.inUse, victim.displaced = victim.inUse.Add(-2*unusedAfter), true
	add(1000, mine)
	if _, err := os.Stat(victim.dir); err != nil || victim.ended.Load() {
		t.Errorf("a job that is over here, with displaced keys, is gone: %t, %v", victim.ended.Load(), err)
	}
	victim.displaced = false
	add(1000, mine)
	if n := len(j.allJobs()); n != maxJobsOfScope || !victim.ended.Load() {
		t.Errorf("%d jobs are known, and the one that was over is gone: %v", n, victim.ended.Load())
	}
	for i := range 2 * maxJobs {
		add(2000+i, Scope{Cgroup: uint64(100 + i), Netns: 7})
	}
	if n := len(j.allJobs()); n > maxJobs {
		t.Errorf("%d jobs are known, at most %d should be", n, maxJobs)
	}

	j2 := jobsIn(t, t.TempDir())
	m := tableOf(9001, 1)
	for i := range maxNodes {
		m.Meta.Control.Nodes = append(m.Meta.Control.Nodes, pslite.Node{ID: pslite.WorkerID(i + 1), Hostname: "10.0.0.3", Port: int32(i)})
	}
	j2.takeNodeTable(&m.Meta, workerAt, testRun, mine)
	if len(j2.allJobs()) != 0 {
		t.Error("a job of more nodes than possible is known")
	}
	for i := range 3 * maxScopes {
		for p := range 2 {
			j2.noteDialled(Scope{Cgroup: uint64(i), Netns: 1}, netip.AddrPortFrom(schedulerAt.Addr(), uint16(p)))
		}
	}
	for p := range 2 * maxDialled {
		j2.noteDialled(mine, netip.AddrPortFrom(schedulerAt.Addr(), uint16(p)))
	}
	if len(j2.dialled) > maxScopes || len(j2.dialled[mine].to) > maxDialled {
		t.Errorf("%d scopes and %d destinations are remembered", len(j2.dialled), len(j2.dialled[mine].to))
	}
}
