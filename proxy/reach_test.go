package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/test/require"
)

// agentOf answers as an agent does that knows of one job's ports.
type agentOf struct {
	ports map[uint16]uint64 // cgroups, 0 for processes of none
	err   error
	asked []uint64 // network namespaces
}

func (a *agentOf) owner(_ context.Context, netns uint64, at netip.AddrPort) (uint64, bool, error) {
	a.asked = append(a.asked, netns)
	cgroup, found := a.ports[at.Port()]
	return cgroup, found, a.err
}

func TestReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &agentOf{ports: map[uint16]uint64{8000: 7, 22: 0}}
		r := newReach(Reach{Owner: agent.owner, Ports: []PortRange{{9000, 9001}}})
		at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("198.18.0.1"), port) }
		expect := func(what string, port uint16, netns uint64, want jobs.Scope, why reason.Reason) {
			t.Helper()
			got, err := r.scope(context.Background(), netns, at(port))
			if got != want || (err == nil) != (why == "") || err != nil && reason.Of(err) != why {
				t.Errorf("%s: %v, %v; want %v, %q", what, got, err, want, why)
			}
		}
		expect("a job's", 8000, 5, jobs.Scope{Cgroup: 7, Netns: 5}, "")
		expect("a job's in this namespace", 8000, 0, jobs.Scope{Cgroup: 7, Netns: r.home}, "")
		if agent.asked[0] != 5 || agent.asked[1] != r.home || r.home == 0 {
			t.Errorf("asked in %v, this namespace is %d", agent.asked, r.home)
		}
		expect("another's", 22, 0, jobs.Scope{}, reason.ForeignPort)
		expect("nobody's", 8001, 0, jobs.Scope{}, reason.Unreachable)
		agent.ports[9000] = 0
		expect("a port that was named", 9000, 0, jobs.Scope{}, "")

		agent.err = errors.New("it has gone")
		began := time.Now()
		expect("a job's, without an agent", 8000, 5, jobs.Scope{Cgroup: 7, Netns: 5}, "")
		expect("a port that was named, without an agent", 9001, 0, jobs.Scope{}, "")
		if time.Since(began) > 0 {
			t.Error("what is known was waited for")
		}
		expect("another's, without an agent", 22, 0, jobs.Scope{}, reason.ForeignPort)
		if time.Since(began) < askWithin {
			t.Error("the agent was not waited for")
		}
		time.Sleep(rememberOwner)
		expect("a job's, long without an agent", 8000, 5, jobs.Scope{}, reason.ForeignPort)
		agent.err = ErrUntold
		expect("an agent that does not tell", 22, 0, jobs.Scope{}, "")

		for i := range 3 * maxOwners {
			r.remember(place{uint64(i), at(8000)}, 7)
		}
		if len(r.owners) > maxOwners {
			t.Errorf("%d answers are kept, at most %d should be", len(r.owners), maxOwners)
		}
	})
}

// A link may have a job's port and no other; the dialer goes past the mesh for
// that one alone.
func TestForeignPortsAreRefused(t *testing.T) {
	job, other, in, mesh := newServer(t), newServer(t), listen(t, workerHost), listen(t, serverHost)
	inOther := listen(t, workerHost)
	agent := &agentOf{ports: map[uint16]uint64{job.addr().Port(): 7, other.addr().Port(): 0}}
	port := addrPort(mesh.Addr()).Port()
	p, _ := start(t, Options{MeshPort: port, Reach: Reach{Owner: agent.owner}}, nil, mesh)
	d := link.Dialer{Net: &net.Dialer{}, ConnectTimeout: time.Minute, AnswerTimeout: time.Minute}
	_, _, err := d.Dial(context.Background(), mesh.Addr().String(), &link.Hello{ID: 1, Destination: other.addr()})
	if reason.Of(err) != reason.ForeignPort {
		t.Errorf("the dialer got %v", err)
	}
	require.Eventually(t, "counted", func() bool { return p.count(reason.ForeignPort) == 1 })

	w, _ := start(t, Options{MeshPort: port}, []Listener{
		{Listener: in, Destination: Fixed(job.addr())}, {Listener: inOther, Destination: Fixed(other.addr())},
	})
	for _, c := range []struct {
		in   net.Listener
		to   *server
		kind kind
	}{{inOther, other, kindDirect}, {in, job, kindLink}} {
		conn := require.Value(net.Dial("tcp", c.in.Addr().String()))(t)
		defer conn.Close()
		echo(t, conn.(*net.TCPConn), c.to.next(t))
		if n := w.conns.sums().total[c.kind]; n != 1 {
			t.Errorf("%d connections of kind %s, want 1", n, c.kind)
		}
	}
}
