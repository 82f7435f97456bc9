package faults

import (
	"fmt"
	"math/rand/v2"
	"strconv"
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

// The sums of a job with PS_RESEND whose workers' pushes are summed are exact while proxies are
// killed, that of the workers' host or any. After each kill the next proxy knows which repeated pushes
// are in a sum that may have arrived.
func TestKilledWhileSummed(t *testing.T) {
	for _, c := range []struct {
		name    string
		batch   int
		victims func(f *fleet) []*service
	}{
		{"workers' proxy", 4000, func(f *fleet) []*service { return f.proxies()[:1] }},
		{"workers' proxy, differing keys", 2000, func(f *fleet) []*service { return f.proxies()[:1] }},
		{"any proxy", 4000, (*fleet).proxies},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, config{proxyArgs: []string{"--insecure", "--handler", "add", "--aggregate", "host", "--aggregate-wait", "20ms"}})
			r := f.startFor(f.unending(f.summing(50, c.batch, resending...)), 4*time.Minute)
			random := rand.New(rand.NewPCG(1, 3))
			victims := c.victims(f)
			var total aggregate.Counts
			for range 15 {
				// The proxy that was killed last, or before it, sums again.
				f.await("pushes to be summed again", func() error {
					if s := f.sums(); s.Carried+s.Partial < 20 {
						return fmt.Errorf("%+v", s)
					}
					return nil
				})
				s := f.sums()
				total.Sums, total.Repeated = total.Sums+s.Sums, total.Repeated+s.Repeated
				victims[random.IntN(len(victims))].kill()
			}
			f.ready(f.sidecars[0])
			if r.over() {
				t.Fatalf("the job was over before all kills: %v", r.err)
			}
			r.exact()
			t.Logf("until the last kill: %d sums, %d repetitions; at the end: %+v", total.Sums, total.Repeated, f.sums())
			f.settled()
		})
	}
}
