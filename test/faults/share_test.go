package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
)

// dense is a job of four workers on the first host, which pull one model of servers on
// the others in each step.
func (f *fleet) dense(args []string, env ...string) hosts.Job {
	node := hosts.Program{f.programs.psjob, "--json"}
	worker := append(append(node[:2:2], "--model", "dense"), args...)
	all := f.net.Hosts()
	return hosts.Job{Scheduler: node, Servers: hosts.Repeat(3, node), Workers: hosts.Repeat(4, worker), Hosts: all[1:], WorkerHosts: all[:1], Env: env}
}

// sharing waits until workers were referred to what others of their host had got, more
// often than before.
func (r *run) sharing(before uint64) (now uint64) {
	r.f.t.Helper()
	r.f.await("shared values", func() error {
		if r.over() {
			return nil
		}
		now = 0
		for _, s := range r.f.sidecars[1:] {
			if c := r.f.state(s).Shared; c != nil {
				now += c.Referred + c.ByKey
			}
		}
		if now <= before {
			return fmt.Errorf("%d references", now)
		}
		return nil
	})
	return now
}

// Proxies are killed on either side while workers of a host share what they pull, and
// all connections between two hosts break: every value is right to the last bit. So it is where
// they share single keys.
func TestSharedPulls(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"whole answers": {"--count-keys", "24", "--count-batch", "1", "--value-length", "20000", "--steps", "200"},
		"by key":        {"--count-keys", "3000", "--count-batch", "500", "--value-length", "16", "--dense-part", "0.5", "--steps", "300"},
	} {
		t.Run(name, func(t *testing.T) { shareThroughFaults(t, args) })
	}
}

func shareThroughFaults(t *testing.T, args []string) {
	f := newFleet(t, config{})
	r := f.start(f.dense(args, resending...))
	r.training()
	r.sharing(0)
	random := rand.New(rand.NewPCG(5, 6))
	faults := 0
	for ; !r.over() && faults < 8; faults++ {
		if faults%2 == 0 {
			f.proxies()[random.IntN(4)].kill()
		} else { // links and lanes of one server's host
			a, b := f.net.Host(0), f.net.Host(1+random.IntN(3))
			ss(t, a, "-K", "-t", "state", "connected", "src", a.IPv4.String(), "dst", b.IPv4.String())
		}
		time.Sleep(time.Duration(200+random.IntN(400)) * time.Millisecond)
	}
	if !r.over() {
		r.sharing(0) // the proxies that were killed count from 0
	}
	r.exact()
	if faults < 4 {
		t.Errorf("only %d faults", faults)
	}
	f.settled()
}
