package faults

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
)

// Agents and proxies come to a job that trains already, and are all replaced at once
// later, so that the job makes some connections while none is there. Each time 95% of
// its bytes, at least, go between proxies soon after, and its sums are exact: nothing
// that a worker or a server has said is lost.
func TestLateComers(t *testing.T) {
	for _, c := range []struct {
		name string
		job  func(f *fleet) hosts.Job
		end  func(r *run)
	}{
		{"psjob", func(f *fleet) hosts.Job { return f.counting(50) }, func(r *run) { r.exact() }},
		{"psjob, resending", func(f *fleet) hosts.Job { return f.counting(50, resending...) }, func(r *run) { r.exact() }},
		{"libzmq", func(f *fleet) hosts.Job { return f.peersFor(50) }, (*run).finish},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t, config{adopt: true, grace: 10 * time.Second})
			f.sendAway()
			r := f.start(f.unending(c.job(f)))
			f.await("the job to send", func() error {
				if direct, _ := f.moved(); direct < 1e6 {
					return fmt.Errorf("%d bytes so far", direct)
				}
				return nil
			})
			for _, come := range []string{"come", "are replaced"} {
				if come == "are replaced" {
					t.Logf("the proxies took %v to end", f.sendAway())
				}
				began := time.Now()
				f.comeBack()
				ready := time.Now()
				share := r.linked()
				t.Logf("all %s in %.1f s; %.1f s later %.1f%% of the bytes go between proxies; %d connections were adopted",
					come, ready.Sub(began).Seconds(), time.Since(ready).Seconds(), 100*share, f.adopted())
			}
			if f.adopted() == 0 {
				t.Error("no connection was adopted")
			}
			c.end(r)
			f.settled()
		})
	}
}

var bytesReceived = regexp.MustCompile(`bytes_received:(\d+)`)

// sendAway ends agent and proxy of each host together, one host after the other, in
// order, and keeps them from coming back. It returns how long each host took.
func (f *fleet) sendAway() (took []time.Duration) {
	f.t.Helper()
	for _, s := range f.sidecars {
		began := time.Now()
		var old []*hosts.Process
		for _, which := range []*service{s.agent, s.proxy} {
			which.StayAway(true)
			old = append(old, which.Current())
			if err := which.signal(syscall.SIGTERM); err != nil {
				f.t.Fatal(err)
			}
		}
		for _, p := range old {
			<-p.Done()
		}
		took = append(took, time.Since(began).Round(time.Millisecond))
		f.inOrder(s)
	}
	return took
}

func (f *fleet) comeBack() {
	f.t.Helper()
	for _, s := range append(f.agents(), f.proxies()...) {
		s.StayAway(false)
	}
	for _, s := range f.sidecars {
		f.ready(s)
	}
}

// adopted is how many connections the agents that are there now have adopted.
func (f *fleet) adopted() (n int) {
	f.t.Helper()
	for _, s := range f.sidecars {
		m, err := hoststest.Metric(s.host, agentHTTP, "psidecar_adopted_total")
		if err != nil {
			f.t.Fatal(err)
		}
		n += int(m)
	}
	return n
}

// linked waits until at least 95% of what goes between hosts goes between proxies.
func (r *run) linked() (share float64) {
	f := r.f
	f.t.Helper()
	f.await("the job's bytes to go between proxies", func() error {
		if r.over() {
			f.t.Fatalf("the job has ended before its bytes went between proxies: %v", r.err)
		}
		direct, linked := f.moved()
		var more, moreLinked uint64
		ends := false
		f.await("a few steps", func() error {
			directNow, linkedNow := f.moved()
			more, moreLinked = directNow-direct, linkedNow-linked
			if ends = r.over() || directNow < direct || linkedNow < linked; !ends && more+moreLinked < 1e5 {
				return fmt.Errorf("%d bytes; %s", more+moreLinked, f.past())
			}
			return nil
		})
		if ends {
			return errors.New("the job, or a connection, has ended")
		}
		if share = float64(moreLinked) / float64(more+moreLinked); share < 0.95 {
			return fmt.Errorf("%.1f%% do; %s", 100*share, f.past())
		}
		return nil
	})
	return share
}

// past is why connections are not adopted, or go through a proxy to no other, for a
// failed wait.
func (f *fleet) past() (all string) {
	for _, s := range f.sidecars {
		text, err := hoststest.Get(s.host, agentHTTP, "/metrics")
		if err != nil {
			return err.Error()
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "psidecar_adopt") && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
				all += s.host.Name + " " + strings.TrimPrefix(line, "psidecar_")
			}
		}
		for _, c := range f.state(s).Connections {
			if c.Kind == "direct" {
				all += fmt.Sprintf("%s goes to %v without a link: %q\n", s.host.Name, c.Destination, c.Past)
			}
		}
	}
	return all
}

// moved is how many bytes have come from other hosts on connections that are there:
// those of the job, and those between proxies.
func (f *fleet) moved() (direct, linked uint64) {
	f.t.Helper()
	for _, s := range f.sidecars {
		for line := range strings.Lines(string(ss(f.t, s.host, "-tniOH", "state", "connected"))) {
			field := strings.Fields(line)
			bytes := bytesReceived.FindStringSubmatch(line)
			if len(field) < 5 || bytes == nil {
				continue
			}
			local, err := netip.ParseAddrPort(field[3])
			peer, bad := netip.ParseAddrPort(field[4])
			if err != nil || bad != nil || local.Addr() == peer.Addr() {
				continue
			}
			n, _ := strconv.ParseUint(bytes[1], 10, 64)
			switch a, b := local.Port(), peer.Port(); {
			case a == meshPort || b == meshPort:
				linked += n
			case a == agentHTTP, a == plannerAPI, a == plannerHTP, a == proxyHTTP, b == plannerAPI, b == plannerHTP:
			default:
				direct += n
			}
		}
	}
	return direct, linked
}
