package watch

import (
	"context"
	"testing"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// An agent whose budget is too small for a job's messages watches a part of the time. It has all
// bytes that one beside it has which counts everything, and of requests, steps and keys estimates.
func TestRests(t *testing.T) {
	program := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json", "--model", "pingpong", "--steps", "40000", "--count-keys", "100"}
	net := hoststest.New(t, hosts.Config{Hosts: 2})
	rests := watch(t, net.Cgroup(), func(o *agent.Options) {
		o.Sampling = agent.Sampling{OneIn: agent.StartOneIn, Window: agent.StartWindow, Budget: 0.1}
	})
	whole := watch(t, net.Cgroup())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(2, program), Workers: hosts.Repeat(2, program), Hosts: net.Hosts()}
	require.Value(j.Run(ctx))(t)
	counters := rests.Agent.Agent().Counters
	for _, w := range []*watcher{rests, whole} {
		require.NoError(t, w.stop())
	}
	rested := uint64(0)
	for _, c := range counters {
		switch {
		case c.Reason == bpf.ReasonRested.String():
			rested = c.Bytes
		case c.Class == page.Lost && c.Reason != bpf.ReasonUntimed.String() && c.Events > 0:
			t.Errorf("lost: %+v", c)
		}
	}
	got, want := rests.Jobs()[0], whole.Jobs()[0]
	if rested < want.Bytes/2 {
		t.Fatalf("of %d bytes %d passed in rests, want more than half", want.Bytes, rested)
	}
	if got.Bytes != want.Bytes || got.LeftHostBytes != want.LeftHostBytes {
		t.Errorf("%d bytes, %d left their hosts; in truth %d and %d", got.Bytes, got.LeftHostBytes, want.Bytes, want.LeftHostBytes)
	}
	if got.Exact || got.State == page.Stalled || len(got.Stalls) > 0 {
		t.Errorf("it says %+v", got)
	}
	steps := func(w *watcher) uint64 {
		all := require.Value(w.Servers(want.Name, page.Range{}))(t)
		sum := uint64(0)
		for _, w := range all.Workers {
			sum += w.Steps
		}
		return sum
	}
	// By timestamps steps are exact, but for the last ones.
	if n, all := steps(rests), steps(whole); n > all || n < all*3/4 {
		t.Errorf("%d steps, in truth %d", n, all)
	}
	t.Logf("%d bytes, %d of them in rests; %d of %d steps; sampling %+v", want.Bytes, rested, steps(rests), steps(whole), got.Sampling)
}
