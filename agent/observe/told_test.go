package observe

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/agent/counts"
)

// Uses of a job that was met late name its workers by rank from the first one on,
// although nobody has asked for the job yet: all processes are known, and so is their
// order.
func TestFirstUsesHaveNames(t *testing.T) {
	scheduler := netip.MustParseAddrPort("127.0.0.1:9000")
	var told []string
	o := New(Options{Locality: counts.DefaultLocalityOptions, Uses: func(u Use) {
		told = append(told, u.Worker.Name(), u.Server.Name())
	}})
	for i, role := range []string{"server", "worker", "worker"} {
		at := netip.AddrPortFrom(scheduler.Addr(), uint16(9001+i))
		o.Meet(Process{PID: 10 + i, Role: role, Scheduler: scheduler, Servers: 1, Workers: 2, Listens: []netip.AddrPort{at}})
	}
	j := o.jobs[scheduler]
	for _, answer := range []bool{false, true} {
		s := &stream{sender: j.workers[1], receiver: j.servers[0]}
		if answer {
			s.sender, s.receiver = s.receiver, s.sender
		}
		s.message.job, s.message.answer = j, answer
		o.reportKeys(s, 0, false)
	}
	if want := []string{"worker1", "server0", "worker1", "server0"}; !slices.Equal(told, want) {
		t.Errorf("told of %q, want %q", told, want)
	}
}
