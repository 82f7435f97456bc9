package faults

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// A proxy is stopped for some 16 seconds. Connections that it carries wait for it,
// new ones on its host go direct once the agent has found it stuck, and those of
// other hosts to its host when their proxies have waited for its hello. A job
// that starts meanwhile ends meanwhile. When the proxy goes on, so does all else.
func TestProxyPaused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{})
	stuck := f.sidecars[1]
	r := f.start(f.counting(200, resending...))
	r.training()
	require.NoError(t, stuck.proxy.signal(syscall.SIGSTOP))
	began := time.Now()
	resume := time.AfterFunc(time.Minute, func() { stuck.proxy.signal(syscall.SIGCONT) })
	defer resume.Stop()
	other := f.counting(20, resending...)
	other.Port = 9092
	f.start(other).exact()
	t.Logf("a job that began while the proxy was stopped took %v", time.Since(began).Round(100*time.Millisecond))
	if r.over() {
		t.Error("the job's own connections did not wait for the proxy")
	}
	if !resume.Stop() {
		t.Error("the second job ended only when the proxy went on")
	}
	if n, err := hoststest.Metric(stuck.host, agentHTTP, "psidecar_intercept_proxies"); err != nil || n != 0 {
		t.Errorf("the agent counts %v proxies that are not stuck, %v", n, err)
	}
	time.Sleep(max(0, 10*time.Second-time.Since(began)))
	require.NoError(t, stuck.proxy.signal(syscall.SIGCONT))
	if longest := longestStep(r.exact()); longest < 9 {
		t.Errorf("the longest step took %v s, want 10", longest)
	}
	if !stuck.agent.logged("stuck") {
		t.Error("the agent has not said that the proxy is stuck")
	}
	f.asBefore()
}

// A proxy that is stopped and would stay so is ended by the agent, and another
// takes its place: a job with PS_RESEND goes on.
func TestAHangingProxyIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{hang: 2 * time.Second})
	stuck := f.sidecars[1]
	r := f.start(f.counting(200, resending...))
	r.training()
	old := stuck.proxy.Current()
	require.NoError(t, stuck.proxy.signal(syscall.SIGSTOP))
	began := time.Now()
	f.await("the stopped "+stuck.proxy.String()+" to be ended", func() error { return stuck.proxy.runs(old) })
	t.Logf("ended and replaced after %v", time.Since(began).Round(10*time.Millisecond))
	if n, err := hoststest.Metric(stuck.host, agentHTTP, `psidecar_intercept_hung_proxies_total{result="ended"}`); err != nil || n != 1 {
		t.Errorf("the agent counts %v proxies that it ended, %v", n, err)
	}
	r.exact()
	f.asBefore()
}

// With few descriptors a proxy takes what it can, and the job's other
// connections go direct; an agent goes on when it has some again.
//
// An agent that redirects and watches one cgroup has 41 of them at rest: 18 maps, two
// programs and three links of BPF (two a cgroup, one for processes that begin), two of
// types of the kernel and one that has programs timed; the others are the page's and
// sockets, logs, and those of the runtime and of the readers of its buffers. Listeners
// for a proxy, the planner, each further cgroup, and a look at /proc come on top.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{openFiles: map[string]int{"proxy": 56, "agent": 80}})
	greedy := f.hoard(f.sidecars[2], 100)
	r := f.start(f.counting(300, resending...))
	r.exact()
	greedy()
	for _, s := range f.sidecars {
		f.await("the agent on "+s.host.Name+" to count direct connects", func() error {
			n, err := hoststest.Metric(s.host, agentHTTP, `psidecar_intercept_events_total{class="direct",reason="no_listener"}`)
			if err == nil && n == 0 {
				err = errors.New("none")
			}
			return err
		})
	}
	f.settled()
	for _, s := range f.sidecars { // room again
		f.ready(s)
		if n, err := hoststest.Metric(s.host, agentHTTP, "psidecar_intercept_full"); err != nil || n != 0 {
			t.Errorf("full is %v on %s, %v", n, s.host.Name, err)
		}
	}
}
