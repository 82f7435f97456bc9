package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/test/require"
)

// Two jobs with displaced keys run one after the other in one cgroup. The one that
// has ended is remembered by a proxy that was killed, and found to be over; then
// agent and proxy end together, as those of one pod do. No connection of the job
// that runs may go past them: it would meet servers that do not have its keys.
func TestAnEndedJobOpensNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{proxyArgs: []string{"--insecure", "--placement", placed(t, elsewhere(t, 4))}})
	f.start(f.counting(5, resending...)).exact()
	second := f.counting(2000, resending...) // longer than what follows
	second.Port = 9092
	r := f.start(second)
	r.training()
	s := f.sidecars[1]
	old := s.proxy.Current()
	s.proxy.kill()
	f.await("the next "+s.proxy.String(), func() error { return s.proxy.runs(old) })
	f.await(s.proxy.String()+" to see that one job is over and the other is not", func() error {
		guarded := map[string]bool{}
		all := f.state(s).Jobs
		for _, j := range all {
			guarded[j.Job] = j.Guarded
		}
		if first, second := guarded[f.jobName()], guarded[f.net.Host(0).Address(9092)]; first || !second || len(all) != 2 {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	for _, v := range []*service{s.agent, s.proxy} {
		v.StayAway(true)
	}
	gone := []func() error{ended(s.agent), ended(s.proxy)}
	s.agent.kill()
	s.proxy.kill()
	for i, v := range []*service{s.agent, s.proxy} {
		f.await("the end of "+v.String(), gone[i])
	}
	before := f.connects(s)
	f.await("connections of the job to be refused, or go direct", func() error {
		now := f.connects(s)
		if now[redirect.ClassRefused]-before[redirect.ClassRefused] < 20 && now[redirect.ClassDirect] == before[redirect.ClassDirect] && !r.over() {
			return fmt.Errorf("%v, before %v", now, before)
		}
		return nil
	})
	if n := f.connects(s)[redirect.ClassDirect] - before[redirect.ClassDirect]; n > 0 {
		t.Errorf("%d connects of a job with displaced keys went direct", n)
	}
	for _, v := range []*service{s.agent, s.proxy} {
		v.StayAway(false)
	}
	r.exact()
	f.unguarded()
}

// ended is an error while the present process of a service runs.
func ended(s *service) func() error {
	p := s.Current()
	return func() error {
		select {
		case <-p.Done():
			return nil
		case <-time.After(10 * time.Millisecond):
			return fmt.Errorf("%s runs", s)
		}
	}
}

// connects are how many connects of a host's job went where, as the kernel has
// counted them.
func (f *fleet) connects(s *sidecar) map[redirect.Class]uint64 {
	f.t.Helper()
	r := require.Value(redirect.Open(redirect.Options{Dir: s.pins}))(f.t)
	defer r.Close()
	counts := require.Value(r.Counts())(f.t)
	sums := map[redirect.Class]uint64{}
	for i, n := range counts {
		sums[redirect.Reason(i).Class()] += n
	}
	return sums
}
