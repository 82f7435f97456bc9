package planner

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

const at1, at2 = "10.0.0.1:9091", "10.0.0.2:9091"

// cluster is hosts that report, and a book that looks.
type cluster struct {
	t      *testing.T
	book   *runBook
	store  store.Store
	second int64 // now
	hosts  map[string]*api.HostReport
	titles map[string]policy.Title
}

func newCluster(t *testing.T, kept store.Store) *cluster {
	t.Helper()
	c := &cluster{t: t, store: kept, second: 1000, hosts: map[string]*api.HostReport{}, titles: map[string]policy.Title{}}
	c.open()
	return c
}

// open begins a planner with what the store has.
func (c *cluster) open() {
	c.t.Helper()
	c.book = require.Value(newRunBook(c.t.Context(), c.store))(c.t)
	c.book.now = func() time.Time { return time.Unix(c.second, 0) }
}

// job has a host report a job that it did not, with one worker of its own; its agent
// counts from here on.
func (c *cluster) job(host, scheduler string, table uint64) *api.JobReport {
	r := c.hosts[host]
	if r == nil {
		r = &api.HostReport{Host: host, Incarnation: 1}
		c.hosts[host] = r
	}
	now := c.second * 1e9
	j := &api.JobReport{Job: scheduler, NodeTable: table, Servers: 1, Workers: 2, FirstUnixNanos: now, LastUnixNanos: now, RunningSinceUnixNanos: now,
		Steps: []*api.Steps{{Worker: "worker-" + host}}}
	r.Jobs = append(r.Jobs, j)
	return j
}

// go_ has the jobs make steps for that many seconds, two a second, of 100 bytes each.
func (c *cluster) goOn(seconds int, jobs ...*api.JobReport) {
	for range seconds {
		c.second++
		for _, j := range jobs {
			j.LastUnixNanos = c.second * 1e9
			j.Steps[0].Steps += 2
			j.Bytes += 200
			j.LeftHostBytes += 50
		}
		c.look()
	}
}

func (c *cluster) look() {
	c.t.Helper()
	l := runLook{Titles: c.titles, Run: func(_ string, table uint64) string { return fmt.Sprintf("run%d", table) }}
	for _, h := range c.hosts {
		l.Reports = append(l.Reports, h)
	}
	require.NoError(c.t, c.book.Look(c.t.Context(), l))
}

func end(jobs ...*api.JobReport) {
	for _, j := range jobs {
		j.RunningSinceUnixNanos = 0
	}
}

func (c *cluster) called(scheduler, name string) {
	c.titles[scheduler] = policy.Title{Name: name, Current: true}
}

// runs returns the runs of a name, the newest first.
func (c *cluster) runs(name string) []page.Run {
	c.t.Helper()
	found := c.book.Runs(name)
	if len(found.Jobs) != 1 || found.Jobs[0].Name != name {
		c.t.Fatalf("of %s there is %+v", name, found)
	}
	return found.Jobs[0].Runs
}

// want checks a run's figures: two workers, 400 bytes a second together.
func want(t *testing.T, r page.Run, id, scheduler string, seconds float64, running bool) {
	t.Helper()
	if r.ID != id || r.Job != scheduler || r.Running != running || r.Steps != 2*seconds || r.StepsPerSecond != 2 || r.Bytes != uint64(400*seconds) ||
		r.BytesPerStep != 200 || r.LeftHostBytes != uint64(100*seconds) || r.Workers != 2 {
		t.Errorf("want %v seconds of %s at %s: %+v", seconds, id, scheduler, r)
	}
}

// Three runs of one name, of which two have one address, are three in its history;
// what was counted before a run does not count for it.
func TestThreeRuns(t *testing.T) {
	c := newCluster(t, &store.Memory{})
	c.called(at1, "ctr")
	c.called(at2, "ctr")
	a, b := c.job("a", at1, 1), c.job("b", at1, 1)
	c.goOn(10, a, b)
	end(a, b)
	c.goOn(3)
	x, y := c.job("a", at2, 2), c.job("b", at2, 2)
	c.goOn(20, x, y)
	end(x, y)
	c.goOn(3)
	for _, j := range []*api.JobReport{a, b} { // the agents' sums go on
		j.NodeTable, j.RunningSinceUnixNanos = 3, c.second*1e9
	}
	c.goOn(30, a, b)
	all := c.runs("ctr")
	if len(all) != 3 {
		t.Fatalf("%d runs: %+v", len(all), all)
	}
	want(t, all[0], "run3", at1, 30, true)
	want(t, all[1], "run2", at2, 20, false)
	want(t, all[2], "run1", at1, 10, false)
}

// A run without a name goes on in the history where planner and agents are replaced, which may
// differ a little in when it began.
func TestRunAcrossReplacements(t *testing.T) {
	c := newCluster(t, &store.Memory{})
	a := c.job("a", at1, 0)
	c.goOn(20, a)
	began := a.RunningSinceUnixNanos
	for _, later := range []time.Duration{0, 20 * time.Millisecond, -20 * time.Millisecond} {
		a.RunningSinceUnixNanos = began + int64(later)
		c.open()
		c.goOn(5, a)
		if runs := c.runs(at1); len(runs) != 1 || !runs[0].Running {
			t.Errorf("%v later there are %+v", later, runs)
		}
	}
}

// A run that begins while nodes of the one before are still there, at the same
// address, is another by its node table, which hosts learn one after the other.
func TestNextRunByTable(t *testing.T) {
	c := newCluster(t, &store.Memory{})
	a, b := c.job("a", at1, 1), c.job("b", at1, 1)
	c.goOn(10, a, b)
	a.NodeTable = 2
	c.goOn(10, a, b)
	b.NodeTable = 2
	c.goOn(10, a, b)
	all := c.runs(at1)
	if len(all) != 2 || all[0].ID != "run2" || all[1].ID != "run1" || all[0].Bytes+all[1].Bytes != 30*400 {
		t.Errorf("%+v", all)
	}
}

// Runs outlive the planner, which continues one that goes on; and an agent that
// starts over counts from zero.
func TestRestarts(t *testing.T) {
	c := newCluster(t, &store.Memory{})
	c.called(at1, "ctr")
	a, b := c.job("a", at1, 1), c.job("b", at1, 1)
	c.goOn(61, a, b)
	before := c.runs("ctr")[0]
	c.open()
	c.goOn(10, a, b)
	all := c.runs("ctr")
	// What the first planner had not written, and what was counted until the next one
	// looked, is lost.
	if len(all) != 1 || all[0].ID != "run1" || all[0].Bytes >= before.Bytes+10*400 || all[0].Bytes < before.Bytes-2*400+9*400-60*400 || !all[0].Began.Equal(before.Began) {
		t.Errorf("after %+v: %+v", before, all)
	}
	sum := all[0].Bytes
	a.Bytes, a.LeftHostBytes, a.Steps[0].Steps = 0, 0, 0
	c.hosts["a"].Incarnation = 2
	c.goOn(10, a, b)
	if got := c.runs("ctr")[0].Bytes; got != sum+10*400 {
		t.Errorf("after an agent's start %d bytes, want %d", got, sum+10*400)
	}
	end(a, b)
	c.look()
	kept := c.runs("ctr")
	c.open()
	if got := c.runs("ctr"); len(got) != 1 || got[0].Bytes != kept[0].Bytes || got[0].Running {
		t.Errorf("it is kept as %+v, want %+v", got, kept)
	}
	c.look() // over when this planner began
	if got := c.runs("ctr"); len(got) != 1 || got[0].Bytes != kept[0].Bytes {
		t.Errorf("then it is %+v", got)
	}
}

// A name that becomes known while a job runs is its run's from the beginning.
func TestRename(t *testing.T) {
	c := newCluster(t, &store.Memory{})
	a, b := c.job("a", at1, 1), c.job("b", at1, 1)
	c.goOn(5, a, b)
	c.called(at1, "ns/ctr")
	c.goOn(5, a, b)
	if all := c.book.Runs(""); len(all.Jobs) != 1 {
		t.Errorf("%+v", all)
	}
	want(t, c.runs("ns/ctr")[0], "run1", at1, 10, true)
	c.second += 120
	c.look()
	names := map[string]bool{}
	require.NoError(t, c.store.Each(t.Context(), func(name string, _ []byte) error { names[name] = true; return nil }))
	if !reflect.DeepEqual(names, map[string]bool{"runs/ns/ctr": true}) {
		t.Errorf("the store has %v", names)
	}
}

func TestBounds(t *testing.T) {
	c := newCluster(t, &store.Memory{})
	for run := range maxRuns + 3 {
		c.called(at1, "ctr")
		a := c.job("a", at1, uint64(run+1))
		c.goOn(2, a)
		c.hosts = map[string]*api.HostReport{}
		c.goOn(1)
	}
	if all := c.runs("ctr"); len(all) != maxRuns || all[0].ID != fmt.Sprintf("run%d", maxRuns+3) {
		t.Errorf("%d runs, the newest %+v", len(all), all[0])
	}
	for i := range maxRunNames + 5 {
		at := fmt.Sprintf("10.1.0.1:%d", i+1)
		a := c.job("a", at, 1)
		c.goOn(1, a)
		c.hosts = map[string]*api.HostReport{}
		c.goOn(1)
	}
	all := c.book.Runs("")
	if len(all.Jobs) != maxRunNames || len(c.book.live) > maxRunNames {
		t.Errorf("%d names, %d of them live", len(all.Jobs), len(c.book.live))
	}
	c.second += 120
	c.look()
	c.open()
	if again := c.book.Runs(""); len(again.Jobs) != maxRunNames {
		t.Errorf("%d names are kept", len(again.Jobs))
	}
}

// failing is a store that cannot write for now.
type failing struct {
	store.Memory
	fails bool
}

func (f *failing) Write(ctx context.Context, all []store.Entry) error {
	if f.fails {
		return store.ErrUnavailable
	}
	return f.Memory.Write(ctx, all)
}

// What could not be written is written later.
func TestStoreThatFails(t *testing.T) {
	kept := &failing{fails: true}
	c := newCluster(t, kept)
	c.second++
	c.job("a", at1, 1)
	if err := c.book.Look(t.Context(), runLook{Reports: []*api.HostReport{c.hosts["a"]}}); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("it says %v", err)
	}
	kept.fails = false
	c.look()
	c.open()
	c.runs(at1)
}

// A history that is no history costs its job's runs, and not the planner's start.
func TestDamagedHistory(t *testing.T) {
	kept := &store.Memory{}
	c := newCluster(t, kept)
	c.second++
	c.goOn(5, c.job("a", at1, 1))
	c.second += 120
	c.look()
	require.NoError(t, kept.Write(t.Context(), []store.Entry{{Name: prefix + "other", Value: []byte("{")}, {Name: prefix + "none", Value: []byte("[]")}}))
	c.open()
	if all := c.book.Runs(""); len(all.Jobs) != 1 || all.Jobs[0].Name != at1 {
		t.Errorf("it has %+v", all)
	}
}

// However many names of workers a host reports in a run, so many are remembered.
func TestWorkersOfARunHaveABound(t *testing.T) {
	v := &runLive{hosts: map[string]*counted{}}
	for round := range 3 {
		j := &api.JobReport{Job: "j"}
		for i := range maxMembers / 2 {
			j.Steps = append(j.Steps, &api.Steps{Worker: fmt.Sprint(round, "/", i), Steps: 1})
		}
		v.countHost(&hostJob{&api.HostReport{Host: "a"}, j})
	}
	if n := len(v.hosts["a"].workers); n != maxMembers {
		t.Errorf("%d workers are remembered, want %d", n, maxMembers)
	}
}
