package faults

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/proxy/aggregate"
)

// summing is a job whose workers, all on the first host, push batches of 4000 keys.
func (f *fleet) summing(steps, batch int) hosts.Job {
	j := f.counting(steps)
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
	r := f.start(f.unending(f.summing(50, batch)))
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
