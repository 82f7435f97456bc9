package faults

import (
	"errors"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// A host is cut off for longer than Go's keepalive would keep an idle connection (150 s). The job
// repeats nothing and goes on, as it does without psidecar.
func TestCutForMinutes(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{})
	job := f.unending(f.peers())
	job.Env = []string{"PEER_TIMEOUT=1200"} // TCP may send again only two minutes after the cut
	r := f.start(job)
	r.training()
	require.NoError(t, f.net.Host(1).Cut())
	select {
	case <-time.After(172 * time.Second):
	case <-r.ended:
		t.Errorf("the job ended while its hosts were cut from each other: %v", r.err)
	}
	require.NoError(t, f.net.Host(1).Heal())
	r.finish()
	f.asBefore()
}

// With the proxies gone, and the agents there, what waited in the listeners goes
// direct when --proxy-grace is over; the job ends without psidecar.
func TestProxiesGone(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{})
	r := f.start(f.counting(300, resending...))
	r.training()
	for _, p := range f.proxies() {
		p.StayAway(true)
		p.kill()
	}
	if longest := longestStep(r.exact()); longest < 0.1 {
		t.Errorf("the longest step took %v s: the job has not noticed that connections broke", longest)
	}
	f.start(f.counting(20)).exact() // new jobs are direct from the start, and lose nothing
	for _, s := range f.sidecars {
		f.await("the agent to count direct connects", func() error {
			n, err := hoststest.Metric(s.host, agentHTTP, `psidecar_intercept_events_total{class="direct",reason="no_listener"}`)
			if err == nil && n < 8 { // five connections of each job
				err = errors.New("it counts too few")
			}
			return err
		})
	}
	for _, p := range f.proxies() {
		p.StayAway(false)
	}
	f.asBefore()
}

func longestStep(all []report) (longest float64) {
	for _, w := range all {
		longest = max(longest, w.LongestStep)
	}
	return longest
}
