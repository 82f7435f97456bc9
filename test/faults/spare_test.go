package faults

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
)

// Of a job for which nothing is asked, the connections stay direct while links are fast, are
// taken in when links become what it waits for, and leave again where encoding no longer pays. The job goes
// on all the while, and its sums are exact.
func TestOnlyWhereItPays(t *testing.T) {
	larger := func(j hosts.Job, flags ...string) hosts.Job {
		for i, w := range j.Workers {
			j.Workers[i] = append(slices.Clone(w), flags...)
		}
		return j
	}
	for _, c := range []struct {
		name string
		job  func(f *fleet) hosts.Job
		end  func(r *run)
	}{
		{"psjob", func(f *fleet) hosts.Job {
			return larger(f.counting(5), "--count-keys", "20000", "--count-batch", "10000")
		}, func(r *run) { r.exact() }},
		{"psjob, resending", func(f *fleet) hosts.Job {
			j := larger(f.counting(5), "--count-keys", "20000", "--count-batch", "10000")
			// Long enough for what waits for a slow link: what is repeated makes it slower still.
			j.Env = []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=5000"}
			return j
		}, func(r *run) { r.exact() }},
		{"libzmq", func(f *fleet) hosts.Job {
			j := larger(f.peersFor(5), "--keys", "9000", "--space", "10000")
			j.Env = []string{"PEER_TIMEOUT=600"} // the scheduler hears nothing all the while
			return j
		}, (*run).finish},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t, config{spare: true})
			r := f.start(f.unending(c.job(f)))
			f.await("the job to send", func() error {
				if direct, _ := f.moved(); direct < 1e7 {
					return fmt.Errorf("%d bytes so far", direct)
				}
				return nil
			})
			for _, s := range f.sidecars {
				if n := f.state(s).Connections; len(n) > 0 {
					t.Errorf("on fast links the proxy on %s carries %+v", s.host.Name, n)
				}
			}
			f.limit(4e6)
			began := time.Now()
			share := r.linked()
			t.Logf("at 4 Mbit/s %.1f%% of the bytes go between proxies after %v", 100*share, time.Since(began))
			f.limit(0)
			began = time.Now()
			f.await("the proxies to carry only what they encode", func() error {
				if r.over() {
					return fmt.Errorf("the job has ended: %w", r.err)
				}
				// Before that nothing can have left, and all would seem to be as it should.
				if fast := time.Since(began); fast < judged {
					return fmt.Errorf("links are fast for %v, and proxies judge a minute", fast)
				}
				for _, s := range f.sidecars {
					pays := map[netip.Addr]bool{} // where processors are busy, a link can seem slow for longer
					all := f.state(s).Connections
					for _, c := range all {
						to := netip.MustParseAddrPort(c.Destination).Addr()
						pays[to] = pays[to] || c.Payoff != nil && c.Payoff.Encodes
					}
					for _, c := range all {
						// One on which nothing is sent is never known as PS-lite, and stays where it is.
						if c.Kind == "link" && c.ToFar.Messages > 0 && !pays[netip.MustParseAddrPort(c.Destination).Addr()] {
							return fmt.Errorf("%+v on %s; %s", c, s.host.Name, f.past())
						}
					}
				}
				return nil
			})
			t.Logf("on fast links nothing goes between proxies in vain after %v", time.Since(began))
			c.end(r)
			f.settled()
		})
	}
}

// judged exceeds for how long encoding must not have paid on a connection before that leaves.
const judged = 75 * time.Second

// limit limits all hosts' links to bits per second; 0: not at all.
func (f *fleet) limit(bits uint64) {
	f.t.Helper()
	for _, s := range f.sidecars {
		if err := s.host.SetRate(bits); err != nil {
			f.t.Fatal(err)
		}
	}
}
