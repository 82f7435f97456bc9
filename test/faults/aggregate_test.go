package faults

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/proxy/aggregate"
)

// summing is a job whose workers, all on the first host, push batches of 4000 keys.
func (f *fleet) summing(steps, batch int, env ...string) hosts.Job {
	j := f.counting(steps, env...)
	worker := append(j.Workers[0], "--count-batch", strconv.Itoa(batch), "--value-length", "4")
	j.Workers, j.WorkerHosts = hosts.Repeat(4, worker), f.net.Hosts()[:1]
	return j
}

// sums is what the proxy of the workers' host counts.
func (f *fleet) sums() aggregate.Counts {
	f.t.Helper()
	if c := f.state(f.sidecars[0]).Aggregate; c != nil {
		return *c
	}
	return aggregate.Counts{}
}

// The sums of a job whose workers' pushes are summed are exact, with TLS too, while the
// proxies of all hosts are replaced in order, one after the other.
func TestHandedOverWhileSummed(t *testing.T) {
	t.Parallel()
	handOverWhileSummed(t, 4000, func(c aggregate.Counts) uint64 { return c.Carried })
}

// So they are where workers push differing keys, and others carry a part of each push.
func TestHandedOverWhileSummedInPart(t *testing.T) {
	t.Parallel()
	handOverWhileSummed(t, 2000, func(c aggregate.Counts) uint64 { return c.Partial })
}

// So they are where a quarter of the keys are not at home: pushes are split, their parts summed.
func TestHandedOverWhileSplitPushesAreSummed(t *testing.T) {
	t.Parallel()
	handOverWhileSummed(t, 4000, func(c aggregate.Counts) uint64 { return c.Carried + c.Partial }, "--placement", placed(t, elsewhere(t, 4))).unguarded()
}

// handOverWhileSummed replaces proxies, which have more flags, under a job that pushes so many keys
// at a time, once enough pushes have been summed.
func handOverWhileSummed(t *testing.T, batch int, count func(aggregate.Counts) uint64, more ...string) *fleet {
	args := append([]string{"--handler", "add", "--aggregate", "host", "--aggregate-wait", "50ms"}, append(withTLS(t), more...)...)
	f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second, proxyArgs: args})
	r := f.startFor(f.unending(f.summing(50, batch)), 3*time.Minute)
	f.await("pushes to be summed", func() error {
		if c := f.sums(); count(c) < 100 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	for i := len(f.sidecars) - 1; i >= 0; i-- {
		s := f.sidecars[i]
		t.Logf("before %s: %+v", s.host.Name, f.sums())
		f.replace(s, s.proxy)
	}
	// The workers' proxy was the last. The one after it goes on where it was.
	f.await("pushes to be summed by the proxy that has taken over", func() error {
		if c := f.sums(); count(c) < 20 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	if r.over() {
		t.Fatalf("the job was over before all proxies were replaced: %v", r.err)
	}
	r.exact()
	t.Logf("at the end: %+v", f.sums())
	f.settled()
	return f
}

// The sums of a job with PS_RESEND whose workers' pushes are summed are exact while the workers' proxy is
// killed with sums on their way: its next one knows which repeated pushes are in a sum that has arrived,
// or may have. The servers are stopped until then, so that none is answered.
func TestKilledWithSumsOnTheirWay(t *testing.T) {
	for _, c := range []struct {
		name  string
		batch int
		more  []string
		off   bool // the next proxy sums nothing, and the one after it again
	}{
		{"equal keys", 4000, nil, false},
		{"differing keys", 2000, nil, false},
		{"displaced keys", 4000, []string{"--placement", placed(t, elsewhere(t, 4))}, false},
		{"turned off and on", 4000, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var off atomic.Bool
			f := newFleet(t, config{proxyArgs: append([]string{"--insecure"}, c.more...), proxyMore: func() []string {
				if off.Load() {
					return []string{"--aggregate", "none"}
				}
				return []string{"--handler", "add", "--aggregate", "host", "--aggregate-wait", "20ms"}
			}})
			r := f.startFor(f.unending(f.summing(50, c.batch, resending...)), 10*time.Minute)
			proxy, repeated := f.sidecars[0], uint64(0)
			for range 8 {
				var sums aggregate.Counts
				f.await("pushes to be summed again", func() error {
					if sums = f.sums(); sums.Carried+sums.Partial < 8 {
						return fmt.Errorf("%+v", sums)
					}
					return nil
				})
				repeated += sums.Repeated
				f.await("sums to be on their way", func() error {
					r.servers((*hosts.Process).Pause)
					if now := f.resting(); now.HeldBytes == 0 {
						r.servers((*hosts.Process).Resume)
						return fmt.Errorf("%+v", now)
					}
					return nil
				})
				off.Store(c.off)
				proxy.proxy.kill()
				r.servers((*hosts.Process).Resume)
				if !c.off {
					continue
				}
				f.await("pushes to go one by one", func() error {
					if sums = f.sums(); sums.Passed[aggregate.Unwanted] < 8 {
						return fmt.Errorf("%+v", sums)
					}
					return nil
				})
				repeated += sums.Repeated
				off.Store(false)
				proxy.proxy.kill()
			}
			r.exact()
			repeated += f.sums().Repeated
			t.Logf("%d repetitions; at the end: %+v", repeated, f.sums())
			if repeated == 0 {
				t.Error("no push in a sum was repeated")
			}
			f.settled()
			if len(c.more) > 0 {
				f.unguarded()
			}
		})
	}
}

// resting returns the counts once they do not change any more.
func (f *fleet) resting() (c aggregate.Counts) {
	f.t.Helper()
	last := aggregate.Counts{HeldBytes: 1}
	f.await("sums to rest", func() error {
		if c = f.sums(); c.Sums != last.Sums || c.HeldBytes != last.HeldBytes {
			last = c
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	return c
}

// servers does something to the processes of all servers.
func (r *run) servers(do func(*hosts.Process) error) {
	r.f.t.Helper()
	for _, s := range r.Servers {
		if err := do(s.Process); err != nil {
			r.f.t.Fatal(err)
		}
	}
}

// So they are while any proxy is killed.
func TestKilledWhileSummed(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{proxyArgs: []string{"--insecure", "--handler", "add", "--aggregate", "host", "--aggregate-wait", "20ms"}})
	r := f.startFor(f.unending(f.summing(50, 4000, resending...)), 10*time.Minute)
	random := rand.New(rand.NewPCG(1, 3))
	for range 15 {
		f.await("pushes to be summed", func() error {
			if s := f.sums(); s.Carried < 8 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		f.proxies()[random.IntN(len(f.sidecars))].kill()
	}
	f.ready(f.sidecars[0])
	if r.over() {
		t.Fatalf("the job was over before all kills: %v", r.err)
	}
	r.exact()
	t.Logf("at the end: %+v", f.sums())
	f.settled()
}
