package jobs

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// heard is a [Guard] that records the needs.
type heard struct {
	t       *testing.T
	needs   map[string]bool // by run
	serving time.Time       // zero: processes of this host do not reach the proxy yet
}

func (h *heard) Need(run, job string, on bool) {
	if job != "10.0.0.1:9000" {
		h.t.Errorf("told of job %s", job)
	}
	h.needs[run] = on
}

func (h *heard) Guarded(run string) bool    { return h.needs[run] }
func (h *heard) Serving() (time.Time, bool) { return h.serving, !h.serving.IsZero() }

// Connections may not go past the proxy while keys of the job are, or may be,
// displaced, and may when all is at home or the job is over.
func TestGuardClosesWhileKeysMayBeDisplaced(t *testing.T) {
	h := &heard{t, map[string]bool{}, time.Now().Add(-time.Hour)}
	x := oneJob(t, Options{Guard: h})
	key := []plan.Keys{plan.One(8)}
	batch := route.Batch{Mover: "10.0.0.2", Number: 1}
	displace := func(owner int32) func() {
		return func() { x.router.Table().Set([]plan.Range{{Keys: key[0], Owner: owner}}) }
	}
	for _, c := range []struct {
		name string
		do   func()
		want bool
	}{
		{"all at home", func() {}, false},
		{"another host moves a key", func() { x.router.Hold(batch, key) }, true},
		{"the key has moved", func() { x.router.Release(batch, 1) }, true},
		{"the job is over here", func() { x.inUse = time.Now().Add(-unusedAfter) }, false},
		{"it is not", func() { x.inUse = time.Now().Add(time.Hour) }, true},
		{"it is without connections, and without a way to make some", func() { x.inUse, h.serving = time.Now().Add(-time.Hour), time.Time{} }, true},
		{"it could make some, but had no time to", func() { x.expected, h.serving = patience, time.Now() }, true},
		{"it could, and did not", func() { h.serving = time.Now().Add(-patience) }, false},
		{"it does after all", func() { x.inUse = time.Now().Add(time.Hour) }, true},
		{"the key comes home", displace(0), false},
		{"another is displaced from the start", displace(1), true},
		{"another run has taken its place", x.close, false},
	} {
		c.do()
		x.guard()
		if got := h.needs[x.runName()]; got != c.want || x.state().Guarded != c.want {
			t.Errorf("%s: connections must not pass: %v, want %v; shown %v", c.name, got, c.want, x.state().Guarded)
		}
	}
}

// A job that was remembered with displaced keys is guarded until its processes
// had time to connect again, however long the agent was away before.
func TestARememberedJobIsGuarded(t *testing.T) {
	h := &heard{t, map[string]bool{}, time.Time{}}
	before := oneJob(t, Options{Guard: h, Planner: "127.0.0.1:1"})
	before.displaced = true
	require.NoError(t, before.save())
	x := remembered(t, before, before.jobs.opts)
	x.inUse = time.Now().Add(-time.Hour)
	if x.guard(); !h.needs[x.runName()] {
		t.Error("connections may pass the proxy before any could be made to it")
	}
	h.serving = time.Now()
	if x.guard(); !h.needs[x.runName()] {
		t.Error("connections may pass the proxy before the job's processes could connect again")
	}
	h.serving = time.Now().Add(-patience)
	if x.guard(); h.needs[x.runName()] {
		t.Error("connections must not pass the proxy although nobody has come for a long time")
	}
}
