package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// Ports of the services, the same on every host.
const (
	agentHTTP  = 9810
	plannerAPI = 9811
	plannerHTP = 9812
	proxyHTTP  = 9813
	meshPort   = 9814
)

// config says what differs from fleet to fleet.
type config struct {
	proxyArgs []string      // instead of --insecure
	grace     time.Duration // of the proxy, 2 s by default
	keep      time.Duration // how long connections wait for a proxy that has gone, 3 s by default
	// hang is after how long the agents end a proxy that does not answer: never by
	// default.
	hang time.Duration
	// openFiles limits the files that a kind of service may have open.
	openFiles map[string]int
	// disk is the folder for logs, sockets and the planner's plans; empty: logs
	// are kept in memory, plans are not kept.
	disk string
	// state is how many bytes the file system of each proxy's state folder has;
	// 0: the folder is one like any other.
	state int
	// memory limits what a kind of service may hold, in bytes, as a container's limit
	// does.
	memory map[string]int64
	// groups are cgroups whose processes the sidecars look after besides the job's.
	groups []string
	// proxyEnv is the proxies' environment besides this process's.
	proxyEnv []string
	// spare leaves it to the agents which connections go through the proxies: all, by default.
	spare bool
	// adopt has connections that go past the proxies made again.
	adopt bool
	// plan is what the planner is to propose, and the proxies may carry out: which
	// server is to have which keys. Empty: they carry out none.
	plan []plan.Range
}

// A sidecar is what a host has beside the job.
type sidecar struct {
	host         *hosts.Host
	pins, socket string
	state        string // folder
	agent, proxy *service
}

// A fleet is four hosts with all that runs on them.
type fleet struct {
	t        *testing.T
	net      *hosts.Net
	programs programs
	config   config
	planner  *service // on the first host
	plans    string   // its store
	sidecars []*sidecar
}

func newFleet(t *testing.T, c config) *fleet {
	t.Helper()
	f := &fleet{t: t, programs: build(t), net: hoststest.New(t, hosts.Config{Hosts: 4}), config: c}
	dir, bpffs := c.disk, mountBPF(t)
	first := f.net.Host(0)
	args := []string{"planner", "--listen", first.Address(plannerAPI), "--insecure", "--socket", "", "--http", first.Address(plannerHTP)}
	if dir == "" {
		dir = folder(t)
	}
	if c.disk != "" || len(c.plan) > 0 {
		f.plans = filepath.Join(dir, "plans")
		args = append(args, "--store", f.plans)
	}
	f.planner = f.service("planner", first, args...)
	for _, h := range f.net.Hosts() {
		f.sidecars = append(f.sidecars, f.sidecar(h, dir, bpffs))
	}
	for _, s := range f.sidecars {
		f.ready(s)
	}
	t.Cleanup(f.stop)
	return f
}

// service starts psidecar on a host.
func (f *fleet) service(name string, h *hosts.Host, args ...string) *service {
	memory := f.limitMemory(name, h)
	s := &service{memory: memory, Service: hoststest.Service{Group: name, Host: h}}
	s.Command = func() (*exec.Cmd, error) {
		cmd := exec.Command(f.programs.psidecar, args...)
		if n := f.config.openFiles[name]; n > 0 {
			cmd = exec.Command("/bin/sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, n), "sh", cmd.Path}, args...)...)
		}
		if name == "proxy" {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			cmd.Env = append(os.Environ(), f.config.proxyEnv...)
			if !f.config.spare {
				cmd.Env = append(cmd.Env, "PSIDECAR_CODEC=compact")
			}
		}
		if memory != nil {
			// What a process aims for that sees the limit in a container of its own.
			cmd.Env = append(cmd.Environ(), fmt.Sprint("GOMEMLIMIT=", f.config.memory[name]/100*85))
			cmd = memory.Enter(cmd)
		}
		if f.config.disk != "" {
			log, err := os.OpenFile(filepath.Join(f.config.disk, name+"-"+h.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			if err != nil {
				return nil, err
			}
			cmd.Stderr = log
		}
		return cmd, nil
	}
	s.run(f.t)
	return s
}

func (f *fleet) sidecar(h *hosts.Host, dir, bpffs string) *sidecar {
	f.t.Helper()
	s := &sidecar{host: h, pins: filepath.Join(bpffs, h.Name)}
	f.t.Cleanup(func() {
		if _, err := redirect.Unload(s.pins); err != nil {
			f.t.Error(err)
		}
	})
	group := require.Value(h.Group("job"))(f.t)
	cgroups := []string{"--cgroup", group}
	for _, name := range f.config.groups {
		other := require.Value(h.Group(name))(f.t)
		cgroups = append(cgroups, "--cgroup", other)
	}
	run := filepath.Join(dir, h.Name) // where the agent makes the proxy's state folder too
	s.socket, s.state = filepath.Join(run, "s"), filepath.Join(run, "state")
	f.mountState(s)
	keep := f.config.keep
	if keep == 0 {
		keep = 3 * time.Second
	}
	s.agent = f.service("agent", h, append([]string{"agent", "--intercept", "--host", h.Name, "--http", h.Address(agentHTTP),
		"--planner", f.net.Host(0).Address(plannerAPI), "--proxy-socket", s.socket, "--proxy-uid", strconv.Itoa(nobody), "--bpf-dir", s.pins,
		"--proxy-grace", keep.String(), "--proxy-hang-after", f.config.hang.String(), fmt.Sprint("--adopt=", f.config.adopt), "--mesh-port", strconv.Itoa(meshPort)}, cgroups...)...)
	args := f.config.proxyArgs
	if args == nil {
		args = []string{"--insecure"}
	}
	grace := f.config.grace
	if grace == 0 {
		grace = 2 * time.Second
	}
	args = append([]string{"proxy", "--http", h.Address(proxyHTTP), "--mesh-port", strconv.Itoa(meshPort), "--proxy-socket", s.socket,
		"--grace", grace.String(), "--no-proxy-retry", "1s", "--peer-grace", keep.String(), "--state-dir", s.state}, args...)
	if len(f.config.plan) > 0 {
		args = append(args, "--act", "--handler", "add", "--planner", f.net.Host(0).Address(plannerAPI))
	}
	s.proxy = f.service("proxy", h, args...)
	return s
}

// ready waits until the agent's proxy has its listeners.
func (f *fleet) ready(s *sidecar) {
	f.t.Helper()
	f.await("the proxy on "+s.host.Name+" to have its listeners", func() error {
		if n, err := hoststest.Metric(s.host, agentHTTP, "psidecar_intercept_proxies"); err != nil || n != 1 {
			return fmt.Errorf("%v proxies, %v", n, err)
		}
		if n, err := hoststest.Metric(s.host, agentHTTP, "psidecar_intercept_listeners"); err != nil || int(n) != 2*(1+len(f.config.groups)) {
			return fmt.Errorf("%v listeners, %v; its agent says:\n%s", n, err, tail(s.agent.log.String(), 20))
		}
		_, err := hoststest.Get(s.host, proxyHTTP, "/readyz")
		return err
	})
}

func (f *fleet) await(what string, ask func() error) {
	f.t.Helper()
	require.Await(f.t, what, ask)
}

// hoard opens connections to a sidecar's agent, at its page and its socket,
// that say nothing, and returns what closes them.
func (f *fleet) hoard(s *sidecar, n int) (release func()) {
	f.t.Helper()
	var all []net.Conn
	release = func() {
		for _, c := range all {
			c.Close()
		}
		all = nil
	}
	f.t.Cleanup(release)
	for i := range n {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		c, err := s.host.Dial(ctx, "tcp", s.host.Address(agentHTTP))
		if i%2 == 0 {
			c, err = new(net.Dialer).DialContext(ctx, "unixpacket", s.socket)
		}
		cancel()
		if err == nil { // else its queue is full
			all = append(all, c)
		}
	}
	return release
}

// state asks a sidecar's proxy for its connections.
func (f *fleet) state(s *sidecar) (state proxy.State) {
	f.t.Helper()
	f.await("the state of the proxy on "+s.host.Name, func() error {
		body, err := hoststest.Get(s.host, proxyHTTP, "/api/v1/connections")
		if err != nil {
			return err
		}
		return json.Unmarshal(body, &state)
	})
	return state
}

// stop ends everything in order. What was pinned is gone then.
func (f *fleet) stop() {
	for _, s := range f.sidecars {
		s.proxy.stop(f.t)
		s.agent.stop(f.t)
		if _, err := filepath.EvalSymlinks(s.pins); err == nil {
			f.t.Errorf("the agent on %s left what it had pinned", s.host.Name)
		}
	}
	f.planner.stop(f.t)
}

// mountBPF returns a BPF file system of its own.
func mountBPF(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// resending makes a job survive lost connections.
var resending = []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=300"}
