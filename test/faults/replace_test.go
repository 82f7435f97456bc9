package faults

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// inOrder checks that no proxy of a host that was replaced has reset connections
// because they did not come to rest.
func (f *fleet) inOrder(s *sidecar) {
	f.t.Helper()
	if s.proxy.logged("resetting the remaining connections") {
		f.t.Errorf("the proxy on %s ended connections by force:\n%s", s.host.Name, tail(s.proxy.log.String(), 10))
	}
}

// allLinked checks that all that goes to other hosts goes over links.
func (f *fleet) allLinked() {
	f.t.Helper()
	for _, s := range f.sidecars {
		for _, c := range f.state(s).Connections {
			if c.Kind == "direct" {
				f.t.Errorf("on %s the connection to %s is direct", s.host.Name, c.Destination)
			}
		}
	}
}

// through waits until a new proxy has links, where the job still needs them.
func (r *run) through(s *sidecar) {
	r.f.t.Helper()
	r.f.await("links through "+s.proxy.String(), func() error {
		n := 0
		for _, c := range r.f.state(s).Connections {
			if c.Kind == "link" {
				n++
			}
		}
		if n < 8 && !r.over() { // a server and a worker make 4 each, and some to the scheduler
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}

// peers is a job of the C++ peer, on libzmq, whose workers check their sums.
func (f *fleet) peers() hosts.Job { return f.peersFor(6000) }

// peersFor makes at least that many rounds.
func (f *fleet) peersFor(rounds int) hosts.Job {
	node := hosts.Program{hoststest.BuildPeer(f.t)}
	worker := append(node[:1:1], "--keys", "200", "--space", "1000", "--shift", "7", "--rounds", strconv.Itoa(rounds))
	return hosts.Job{Scheduler: node, Servers: hosts.Repeat(4, node), Workers: hosts.Repeat(4, worker), Hosts: f.net.Hosts()}
}

// replace ends a service in order and waits until the next is ready.
func (f *fleet) replace(s *sidecar, which *service) {
	f.t.Helper()
	old := which.Current()
	began := time.Now()
	require.NoError(f.t, which.signal(syscall.SIGTERM))
	<-old.Done()
	took := time.Since(began)
	f.await("the next "+which.String(), func() error { return which.runs(old) })
	f.ready(s)
	f.t.Logf("%s: ended after %v, replaced after %v", which, took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// Between the end of a proxy and the start of the next, connects wait: a job
// that starts meanwhile goes through the new ones, and loses nothing.
func TestConnectsWaitForTheNextProxy(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{keep: 15 * time.Second})
	for _, p := range f.proxies() {
		p.StayAway(true)
		old := p.Current()
		require.NoError(t, p.signal(syscall.SIGTERM))
		<-old.Done()
	}
	began := time.Now()
	r := f.start(f.counting(100))
	time.Sleep(4 * time.Second) // less than the agents keep the listeners
	for _, p := range f.proxies() {
		p.StayAway(false)
	}
	away := time.Since(began)
	r.training()
	r.exact()
	for _, s := range f.sidecars {
		n, err := hoststest.Metric(s.host, agentHTTP, `psidecar_intercept_events_total{class="direct",reason="no_listener"}`)
		if err != nil || n > 0 {
			t.Errorf("%v connects on %s went direct while the proxy was away for %v, %v", n, s.host.Name, away, err)
		}
	}
	f.settled()
}
