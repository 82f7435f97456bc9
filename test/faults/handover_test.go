package faults

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"

	"github.com/psidecar/psidecar/test/certs"
	"github.com/psidecar/psidecar/test/require"
)

// Proxies are replaced in order under a job that repeats nothing and never rests, one
// host's after the other, and those of all hosts at once: its sums are exact, and it
// makes no connection again, since none was reset or ended.
func TestHandedOver(t *testing.T) {
	secured := withTLS(t)
	for _, c := range []struct {
		name string
		args []string
	}{
		{"default", []string{"--insecure"}},
		{"placed, TLS", append([]string{"--placement", placed(t, elsewhere(t, 4))}, secured...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second, proxyArgs: c.args})
			r := f.start(f.unending(f.counting(50)))
			r.training()
			f.allUsed()
			before := f.redirected()
			for _, s := range f.sidecars {
				f.replace(s, s.proxy)
				f.tookAll(s)
			}
			f.replaceAll()
			for _, s := range f.sidecars {
				f.tookAll(s)
			}
			if r.over() {
				t.Fatal("the job was over before all proxies were replaced")
			}
			r.exact()
			if after := f.redirected(); after != before {
				t.Errorf("the job made %v connections anew", after-before)
			}
			f.settled()
			f.unguarded()
		})
	}
}

// withTLS returns the flags of proxies with mutual TLS in the mesh.
func withTLS(t *testing.T) []string {
	t.Helper()
	issued := certs.NewAuthority(t, "mesh").Issue(t, t.TempDir(), "proxy.mesh", time.Now().Add(time.Hour))
	dir := folder(t) // the proxies are nobody
	for from, to := range map[string]string{issued.Cert: "cert", issued.Key: "key", issued.CA: "ca"} {
		require.NoError(t, publish(from, filepath.Join(dir, to)))
	}
	return []string{"--tls-cert", filepath.Join(dir, "cert"), "--tls-key", filepath.Join(dir, "key"), "--tls-ca", filepath.Join(dir, "ca"), "--tls-peer", "*.mesh"}
}

// What waits of pushes under a threshold goes along: the servers of a job that repeats
// nothing have the very sums that they have without proxies.
func TestHandedOverUnderAThreshold(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{proxyArgs: []string{"--insecure", "--threshold", "0.9"}, grace: 10 * time.Second, keep: 15 * time.Second})
	counting := f.counting(900)
	counting.Workers[0] = append(counting.Workers[0], "--count-late", "--count-batch", "300")
	counting.Workers = hosts.Repeat(4, counting.Workers[0])
	want := direct(t, counting)
	r := f.start(counting)
	r.training()
	f.allUsed()
	before := f.redirected()
	for _, s := range f.sidecars {
		f.waits(s)
		f.replace(s, s.proxy)
		f.tookAll(s)
	}
	for _, s := range f.sidecars {
		f.waits(s)
		f.order(s, http.MethodPut, "/api/v1/codecs", "[]")
	}
	if r.over() {
		t.Fatalf("the job was over before the threshold was taken away: %v", r.err)
	}
	if <-r.ended; r.err != nil {
		t.Fatal(r.err)
	}
	if got := digests(t, r.Running); !maps.Equal(got, want) {
		t.Errorf("the servers' digests are %v, want %v", got, want)
	}
	if after := f.redirected(); after != before {
		t.Errorf("the job made %v connections anew", after-before)
	}
	f.settled()
}

// redirected is how many connections of the job were redirected on all hosts.
func (f *fleet) redirected() (n float64) {
	f.t.Helper()
	for _, s := range f.sidecars {
		m, err := hoststest.Metric(s.host, agentHTTP, `psidecar_intercept_events_total{class="redirected",reason="redirected"}`)
		require.NoError(f.t, err)
		n += m
	}
	return n
}

// allUsed waits until every server has sent to every worker, and the reverse: no connection is made
// later.
func (f *fleet) allUsed() {
	f.t.Helper()
	for i, s := range f.sidecars {
		f.await("all connections from "+s.host.Name+" to be used", func() error {
			want := 2 * (4 + 1) // a server's and a worker's, to four of each other and the scheduler
			if i == 0 {
				want += 8 // the scheduler's
			}
			used := 0
			for _, c := range f.state(s).Connections {
				if c.ToFar.Messages > 0 {
					used++
				}
			}
			if used < want {
				return fmt.Errorf("%d are, want %d", used, want)
			}
			return nil
		})
	}
}

// tookAll waits until a proxy goes on with all that the one before it left.
func (f *fleet) tookAll(s *sidecar) {
	f.t.Helper()
	f.await("the connections of the proxy before on "+s.host.Name, func() error {
		p := f.state(s).Passed
		if p.Lost > 0 {
			f.t.Fatalf("the proxy on %s lost %d connections; it says:\n%s", s.host.Name, p.Lost, tail(s.proxy.log.String(), 20))
		}
		if p.Taken < 16 { // a server and a worker make 4 each, and as many come
			return fmt.Errorf("%+v", *p)
		}
		return nil
	})
}

// replaceAll ends the proxies of all hosts at once, and waits for the next ones.
func (f *fleet) replaceAll() {
	f.t.Helper()
	var all []*hosts.Process
	for _, s := range f.sidecars {
		all = append(all, s.proxy.Current())
	}
	var ending sync.WaitGroup
	for i, s := range f.sidecars {
		require.NoError(f.t, s.proxy.signal(syscall.SIGTERM))
		ending.Go(func() { <-all[i].Done() })
	}
	ending.Wait()
	for i, s := range f.sidecars {
		f.await("the next proxy on "+s.host.Name, func() error { return s.proxy.runs(all[i]) })
		f.ready(s)
	}
}

// An agent is replaced in order while no proxy is there, and holds what the one before
// left: it waits for the next proxy, which goes on with all of it.
func TestHandedOverWhileTheAgentEnds(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second})
	r := f.start(f.unending(f.counting(50)))
	r.training()
	for _, s := range f.sidecars {
		s.proxy.StayAway(true)
		agent, proxy := s.agent.Current(), s.proxy.Current()
		require.NoError(t, s.proxy.signal(syscall.SIGTERM))
		<-proxy.Done()
		require.NoError(t, s.agent.signal(syscall.SIGTERM))
		s.proxy.StayAway(false)
		f.await("the next agent and proxy on "+s.host.Name, func() error {
			return errors.Join(s.agent.runs(agent), s.proxy.runs(proxy))
		})
		f.ready(s)
		f.tookAll(s)
	}
	if r.over() {
		t.Fatal("the job was over before all were replaced")
	}
	r.exact()
	f.settled()
}
