package listeners

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// ground is a job host, the host of its destination, and where the sidecar
// keeps its things.
type ground struct {
	t          *testing.T
	job, far   *hosts.Host
	pins, sock string
	cgroup     string // of the job
	to         string // somebody who says "direct" to whoever comes
	process    Process
}

func newGround(t *testing.T) *ground {
	t.Helper()
	require.Root(t)
	require.BPF(t)
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	g := &ground{t: t, job: n.Host(0), far: n.Host(1)}
	parent := t.TempDir()
	g.pins = filepath.Join(parent, "psidecar")
	t.Cleanup(func() {
		if _, err := redirect.Unload(g.pins); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(parent, unix.MNT_DETACH); err != nil && err != unix.EINVAL { // Unload did
			t.Error(err)
		}
	})
	r := require.Value(redirect.Open(redirect.Options{Dir: g.pins}))(t) // mounts
	require.NoError(t, r.Close())
	// A folder that the proxy's user can reach; t.TempDir's are root's alone.
	dir := require.Value(os.MkdirTemp("", "psd-listeners-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	g.sock = filepath.Join(dir, "listeners.sock")
	g.cgroup = require.Value(g.job.Group("job"))(t)
	g.process = Process{Job: "198.18.0.1:9000", Cgroup: g.cgroup, Netns: "/run/netns/" + g.job.Namespace()}
	g.to = serve(t, g.far)
	return g
}

func serve(t *testing.T, h *hosts.Host) string {
	t.Helper()
	l := require.Value(h.Listen(t.Context(), "tcp", net.JoinHostPort(h.IPv4.String(), "0")))(t)
	var group sync.WaitGroup
	t.Cleanup(group.Wait)
	t.Cleanup(func() { l.Close() })
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "direct")
			c.Close()
		}
	})
	return l.Addr().String()
}

// startAgent runs the agent on the far host: it must enter the job's namespace.
func (g *ground) startAgent(grace string, hang ...string) *hoststest.Child {
	g.t.Helper()
	agent := hoststest.Start(g.t, g.far, "agent", hoststest.Task("agent", append([]string{g.pins, g.sock, grace}, hang...)...))
	if got := agent.Line(); got != "ready" {
		g.t.Fatal(got)
	}
	return agent
}

func (g *ground) startProxy() *hoststest.Child {
	return hoststest.Start(g.t, g.far, "proxy", hoststest.Task("proxy", g.sock))
}

func (g *ground) want(agent *hoststest.Child, processes ...Process) {
	g.t.Helper()
	text := require.Value(json.Marshal(processes))(g.t)
	if got := agent.Ask(string(text)); got != "done <nil>" {
		g.t.Errorf("reconciling: %s", got)
	}
}

// until asks until the answer is the one wanted.
func (g *ground) until(client *hoststest.Child, want string) {
	g.t.Helper()
	require.Await(g.t, "the client gets "+want, func() error {
		if got := client.Ask(g.to); !strings.Contains(got, want) {
			return fmt.Errorf("it gets %q", got)
		}
		return nil
	})
}

func (g *ground) through(p *hoststest.Child) string {
	return fmt.Sprintf("proxy %d %s %s", p.Pid(), g.process.Job, g.to)
}

// set has a proxy set fail-closed, once it has met the agent, which gives it the listeners first.
func (g *ground) set(p *hoststest.Child, id redirect.GroupID, state string) {
	g.t.Helper()
	require.Await(g.t, "the agent takes fail-closed from the proxy", func() error {
		if got := p.Ask(fmt.Sprintf("%d %s", id, state)); got != "set <nil>" {
			return errors.New(got)
		}
		return nil
	})
}

// TestHandoverToAProxyWithoutPrivileges: a proxy without privileges, in other namespaces than the job's,
// serves it; proxies and agents are replaced and killed.
func TestHandoverToAProxyWithoutPrivileges(t *testing.T) {
	g := newGround(t)
	client := hoststest.Start(t, g.job, "job", hoststest.Task("client"))
	agent := g.startAgent("1m")
	g.want(agent, g.process)
	if got := client.Ask(g.to); got != "direct" {
		t.Errorf("without a proxy: %s", got)
	}
	first := g.startProxy()
	g.until(client, g.through(first))

	second := g.startProxy()
	id := require.Value(redirect.ID(g.cgroup))(t)
	g.set(second, id, "off") // both have the listeners, in whatever order
	first.End(syscall.SIGTERM)
	g.until(client, g.through(second))

	// Killed and replaced within the grace: connects wait for the next one.
	second.End(syscall.SIGKILL)
	third := g.startProxy()
	if got := client.Ask(g.to); got != g.through(third) {
		t.Errorf("while a proxy is replaced: %s", got)
	}

	// The agent is killed: the proxy works on, and takes the next one's.
	agent.End(syscall.SIGKILL)
	for range 3 {
		if got := client.Ask(g.to); got != g.through(third) {
			t.Errorf("without an agent: %s", got)
		}
	}
	agent = g.startAgent("300ms")
	g.want(agent, g.process)
	for range 20 { // at the old listener, then at the new one
		if got := client.Ask(g.to); got != g.through(third) && got != "direct" {
			t.Errorf("with a new agent: %s", got)
		}
	}
	g.until(client, g.through(third))

	// Killed and not replaced within the grace, which is short now.
	third.End(syscall.SIGKILL)
	g.until(client, "direct")
	fourth := g.startProxy()
	g.until(client, g.through(fourth))

	// Both killed: direct.
	agent.End(syscall.SIGKILL)
	fourth.End(syscall.SIGKILL)
	g.until(client, "direct")
}

// TestFailClosed: set by the proxy, it outlives proxy and agent.
func TestFailClosed(t *testing.T) {
	g := newGround(t)
	client := hoststest.Start(t, g.job, "job", hoststest.Task("client"))
	agent := g.startAgent("100ms")
	g.want(agent, g.process)
	proxy := g.startProxy()
	g.until(client, g.through(proxy))
	id, err := redirect.ID(g.cgroup)
	require.NoError(t, err)
	if got := proxy.Ask("closed"); got != "closed false" {
		t.Errorf("before any proxy asked for it: %s", got)
	}
	if got := proxy.Ask(fmt.Sprintf("%d on", id)); got != "set <nil>" {
		t.Fatal(got)
	}
	if got := proxy.Ask("12345678 on"); !strings.Contains(got, "is not redirected") {
		t.Errorf("an unknown cgroup: %s", got)
	}
	if got := client.Ask(g.to); got != g.through(proxy) {
		t.Errorf("with a proxy: %s", got)
	}
	proxy.End(syscall.SIGKILL)
	g.until(client, "refused")
	agent.End(syscall.SIGKILL)
	if got := client.Ask(g.to); !strings.Contains(got, "refused") {
		t.Errorf("without an agent: %s", got)
	}
	agent = g.startAgent("100ms")
	g.want(agent) // knows of no process yet, but one lives there
	if got := client.Ask(g.to); !strings.Contains(got, "refused") {
		t.Errorf("with a new agent: %s", got)
	}
	g.want(agent, g.process)
	proxy = g.startProxy()
	g.until(client, g.through(proxy))
	if got := proxy.Ask("closed"); got != "closed true" {
		t.Errorf("the next proxy is told %s", got)
	}
	if got := proxy.Ask(fmt.Sprintf("%d off", id)); got != "set <nil>" {
		t.Fatal(got)
	}
	proxy.End(syscall.SIGKILL)
	g.until(client, "direct")
	g.want(agent) // the job has ended
	if groups := g.groups(); len(groups) != 0 {
		t.Errorf("still redirected: %v", groups)
	}
}

// TestCrowdedCgroup: connects of a cgroup that has its share of the proxy go direct, until it has
// less, and those of others do not.
func TestCrowdedCgroup(t *testing.T) {
	g := newGround(t)
	client := hoststest.Start(t, g.job, "job", hoststest.Task("client"))
	agent := g.startAgent("1m")
	g.want(agent, g.process)
	proxy := g.startProxy()
	g.until(client, g.through(proxy))
	id := require.Value(redirect.ID(g.cgroup))(t)
	for _, want := range []struct {
		crowded redirect.GroupID
		through string
	}{{id, "direct"}, {0, g.through(proxy)}, {id, "direct"}, {id + 1, g.through(proxy)}} {
		if got := proxy.Ask(fmt.Sprintf("%d crowded", want.crowded)); got != "set <nil>" {
			t.Fatal(got)
		}
		g.until(client, want.through)
	}
}

// TestTwoProxiesFailClosed: while a proxy takes another's place both may have
// something to say of a cgroup. It is opened when neither needs it closed.
func TestTwoProxiesFailClosed(t *testing.T) {
	g := newGround(t)
	client := hoststest.Start(t, g.job, "job", hoststest.Task("client"))
	agent := g.startAgent("1m")
	g.want(agent, g.process)
	id := require.Value(redirect.ID(g.cgroup))(t)
	proxies := []*hoststest.Child{g.startProxy(), g.startProxy()}
	set := func(p *hoststest.Child, state string, closed bool) {
		t.Helper()
		g.set(p, id, state)
		if all := g.groups(); len(all) != 1 || all[0].Policy.FailClosed != closed {
			t.Errorf("a proxy says %s, and the group is %+v, want closed %v", state, all, closed)
		}
	}
	set(proxies[0], "on", true)
	set(proxies[1], "on", true)
	set(proxies[0], "off", true)
	set(proxies[1], "off", false)
	set(proxies[0], "on", true)
	proxies[0].End(syscall.SIGKILL)
	g.until(client, g.through(proxies[1]))
	if all := g.groups(); len(all) != 1 || !all[0].Policy.FailClosed {
		t.Errorf("the proxy that needed it closed was killed, and the group is %+v", all)
	}
}

func (g *ground) groups() []redirect.Group {
	g.t.Helper()
	r := require.Value(redirect.Open(redirect.Options{Dir: g.pins}))(g.t)
	defer r.Close()
	groups := require.Value(r.Groups())(g.t)
	return groups
}

// TestOrderlyEnd: an agent that ends in order lets connects go direct although
// the proxy has its copies.
func TestOrderlyEnd(t *testing.T) {
	g := newGround(t)
	client := hoststest.Start(t, g.job, "job", hoststest.Task("client"))
	agent := g.startAgent("300ms")
	g.want(agent, g.process)
	g.until(client, g.through(g.startProxy()))
	agent.End(syscall.SIGTERM)
	if got := client.Ask(g.to); got != "direct" {
		t.Errorf("after the agent's end: %s", got)
	}
	if _, err := os.Stat(g.sock); err == nil {
		t.Error("the socket is still there")
	}
}

// TestWhoIsRefused: only root, the agent's user and the proxy's get listeners,
// and only those that speak this version.
func TestWhoIsRefused(t *testing.T) {
	g := newGround(t)
	agent := g.startAgent("300ms")
	g.want(agent, g.process)
	raw := require.Value(net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: g.sock, Net: "unixpacket"}))(t)
	conn := handover.NewConn(raw)
	defer conn.Close()
	require.NoError(t, conn.Send(handover.Message{Kind: handover.Hello, Version: 99}, nil))
	if m, _, err := conn.Receive(); err != nil || m.Kind != handover.Refused || !strings.Contains(m.Error, "version 99") {
		t.Errorf("%+v, %v", m, err)
	}
	require.NoError(t, os.Chmod(g.sock, 0o666))
	out, err := hoststest.Task("proxy", g.sock, "65533").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "of user 65533: listeners are for user 65534") {
		t.Errorf("another user: %v: %s", err, out)
	}
	if _, err := New(Options{Redirect: openRedirect(t, g.pins), Socket: g.sock, OwnCgroup: g.cgroup}); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second agent: %v", err)
	}
}

func openRedirect(t *testing.T, pins string) *redirect.Redirect {
	t.Helper()
	r := require.Value(redirect.Open(redirect.Options{Dir: pins}))(t)
	t.Cleanup(func() { r.Close() })
	return r
}

// TestMetricsHaveEveryReason: every reason has its metric.
func TestMetricsHaveEveryReason(t *testing.T) {
	g := newGround(t)
	l := require.Value(New(Options{Redirect: openRedirect(t, g.pins), Socket: g.sock, OwnCgroup: g.cgroup}))(t)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(l)
	gathered := func() (n int) {
		t.Helper()
		families := require.Value(registry.Gather())(t)
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	if want, got := redirect.Reasons+10, gathered(); got != want {
		t.Errorf("%d metrics, want %d", got, want)
	}
	require.NoError(t, l.Close())
	if n := gathered(); n != 0 {
		t.Errorf("%d metrics after closing", n)
	}
}
