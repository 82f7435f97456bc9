package faults

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/hoststest"
)

// most is how many are killed: where processes take longer to start than from kill
// to kill, no job would come to its end.
const most = 100

// Agents, proxies and the planner are killed again and again while the job
// trains, at random moments, one of a kind or any of them.
func TestKilled(t *testing.T) {
	for _, c := range []struct {
		name    string
		victims func(f *fleet) []*service
		steps   int
		pause   time.Duration // from kill to kill, on average
	}{
		{"proxies", (*fleet).proxies, 150, 300 * time.Millisecond},
		{"agents", (*fleet).agents, 500, 200 * time.Millisecond},
		{"anything", (*fleet).everything, 500, 200 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, config{})
			r := f.start(f.counting(c.steps, resending...))
			r.training()
			random := rand.New(rand.NewPCG(1, 2))
			victims := c.victims(f)
			kills := 0
			for ; !r.over() && kills < most; kills++ {
				victims[random.IntN(len(victims))].kill()
				time.Sleep(c.pause/2 + time.Duration(random.Int64N(int64(c.pause))))
			}
			r.exact()
			if kills < 10 {
				t.Errorf("only %d kills", kills)
			}
			t.Logf("%d kills", kills)
			f.asBefore()
		})
	}
}

// asBefore checks that all works as before: a job runs through the proxies, the
// agents see where its messages were to go, and nothing is left of it.
func (f *fleet) asBefore() {
	f.t.Helper()
	for _, s := range f.sidecars {
		f.ready(s)
	}
	f.start(f.counting(20, resending...)).exact()
	for _, s := range f.sidecars {
		f.await("the agent on "+s.host.Name+" to see what left it", func() error {
			n, err := hoststest.Metric(s.host, agentHTTP, `psidecar_left_host_bytes_total{job="`+f.net.Host(0).Address(9091)+`"}`)
			if err == nil && n == 0 {
				err = errors.New("nothing")
			}
			return err
		})
	}
	f.settled()
}

func (f *fleet) everything() []*service { return append(append(f.proxies(), f.agents()...), f.planner) }

func (f *fleet) proxies() (all []*service) {
	for _, s := range f.sidecars {
		all = append(all, s.proxy)
	}
	return all
}

func (f *fleet) agents() (all []*service) {
	for _, s := range f.sidecars {
		all = append(all, s.agent)
	}
	return all
}
