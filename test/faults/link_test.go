package faults

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

// Hosts are cut off for one to two seconds, one or two at a time. Connections
// outlive that. TCP needs some time to notice that the link is back.
func TestLinksCut(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{})
	r := f.start(f.counting(800, resending...))
	r.training()
	random := rand.New(rand.NewPCG(3, 4))
	cuts := 0
	for ; !r.over() && cuts < 10; cuts++ { // on a busy machine the job would not end otherwise
		some := random.Perm(4)[:1+random.IntN(2)]
		for _, i := range some {
			if err := f.net.Host(i).Cut(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Duration(1000+random.IntN(1000)) * time.Millisecond)
		for _, i := range some {
			if err := f.net.Host(i).Heal(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Duration(3000+random.IntN(1000)) * time.Millisecond)
	}
	r.exact()
	if cuts < 3 {
		t.Errorf("only %d cuts", cuts)
	}
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
			n, err := s.host.Metric(agentHTTP, `psidecar_intercept_events_total{class="direct",reason="no_listener"}`)
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
