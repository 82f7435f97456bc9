package acting

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// Restarting is a process on a host that is started again when it is killed.
type Restarting struct {
	Host *hosts.Host
	t    *testing.T
	// groups is how many cgroups the agent beside a proxy watches.
	groups int

	mu      sync.Mutex // guards what follows
	args    []string   // program and arguments of the next process
	process *hosts.Process
	stopped bool
	log     bytes.Buffer
	running sync.WaitGroup
}

// Write keeps the end of the log.
func (r *Restarting) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log.Len() > 1<<20 {
		r.log.Reset()
	}
	return r.log.Write(p)
}

// KeepRunning starts a process, which ends with the test.
func KeepRunning(t *testing.T, h *hosts.Host, args ...string) *Restarting {
	t.Helper()
	r := &Restarting{t: t, Host: h, args: args}
	r.start()
	r.running.Go(func() {
		for {
			<-r.Current().Done()
			time.Sleep(100 * time.Millisecond)
			r.mu.Lock()
			stopped := r.stopped
			r.mu.Unlock()
			if stopped {
				return
			}
			r.start()
		}
	})
	t.Cleanup(func() {
		r.mu.Lock()
		r.stopped = true
		r.mu.Unlock()
		r.Kill()
		r.running.Wait()
		if t.Failed() {
			t.Logf("%s on %s:\n%s", args[1], h.Name, r.log.Bytes()[max(0, r.log.Len()-8192):])
		}
	})
	return r
}

func (r *Restarting) start() {
	r.mu.Lock()
	cmd := exec.Command(r.args[0], r.args[1:]...)
	r.mu.Unlock()
	cmd.Stderr = r
	p, err := r.Host.StartIn("sidecar", cmd)
	if err != nil {
		r.t.Error(err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
}

// Current returns the process that runs, or ran last.
func (r *Restarting) Current() *hosts.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// Args returns the arguments of the next process.
func (r *Restarting) Args() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.args[1:])
}

// Replace ends the process in order and starts another with other arguments, which is ready then.
func (r *Restarting) Replace(args ...string) {
	r.t.Helper()
	before := r.Current()
	r.mu.Lock()
	r.args = append(r.args[:1:1], args...)
	r.mu.Unlock()
	before.Signal(syscall.SIGTERM)
	require.Eventually(r.t, fmt.Sprintf("%s on %s ends", r.Args()[0], r.Host.Name), func() bool { return r.Current() != before })
	r.Ready()
}

// Kill kills the process.
func (r *Restarting) Kill() { r.Current().Signal(syscall.SIGKILL) }

// State asks the proxy at its page.
func (r *Restarting) State() (s proxy.State, err error) {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return r.Host.Dial(ctx, network, address)
		}}}
	response, err := client.Get("http://" + net.JoinHostPort(r.Host.IPv4.String(), "9813") + "/api/v1/connections")
	if err != nil {
		return s, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(body, &s)
}

// Moving are the flags of proxies that move keys as a planner says.
func (p *Planner) Moving() []string {
	return []string{"--act", "--handler", "add", "--planner", p.Address}
}

// StartProxies runs an agent and a proxy with these flags on every host, and returns
// the proxies.
func StartProxies(t *testing.T, n *hosts.Net, flags ...string) []*Restarting {
	t.Helper()
	return StartProxiesOf(t, hoststest.BuildJob(t, "cmd/psidecar"), n.Hosts(), flags...)
}

// StartProxiesOf is [StartProxies] with another program, on some hosts.
func StartProxiesOf(t *testing.T, program string, on []*hosts.Host, flags ...string) []*Restarting {
	t.Helper()
	return StartProxiesFor(t, program, on, []string{"job"}, flags...)
}

// StartProxiesFor is [StartProxiesOf] for jobs in several cgroups.
func StartProxiesFor(t *testing.T, program string, on []*hosts.Host, groups []string, flags ...string) []*Restarting {
	t.Helper()
	dir := require.Value(os.MkdirTemp("", "reroute-"))(t) // the socket's path must be short
	t.Cleanup(func() { os.RemoveAll(dir) })
	pins := filepath.Join(dir, "bpf")
	require.NoError(t, os.Mkdir(pins, 0o700))
	require.NoError(t, unix.Mount("bpf", pins, "bpf", 0, ""))
	t.Cleanup(func() { unix.Unmount(pins, unix.MNT_DETACH) })
	var all []*Restarting
	for _, h := range on {
		watch := []string{program, "agent", "--intercept", "--host", h.Name}
		for _, name := range groups {
			group := require.Value(h.Group(name))(t)
			watch = append(watch, "--cgroup", group)
		}
		socket, pin := filepath.Join(dir, h.Name+".sock"), filepath.Join(pins, h.Name)
		t.Cleanup(func() {
			if _, err := redirect.Unload(pin); err != nil {
				t.Error(err)
			}
		})
		http := func(port string) string { return net.JoinHostPort(h.IPv4.String(), port) }
		KeepRunning(t, h, append(watch, "--http", http("9810"), "--proxy-socket", socket, "--bpf-dir", pin)...)
		args := append([]string{program, "proxy", "--host", h.Name, "--proxy-socket", socket, "--insecure", "--http", http("9813"),
			"--state-dir", filepath.Join(dir, h.Name), "--grace", "10s"}, flags...)
		p := KeepRunning(t, h, args...)
		p.groups = len(groups)
		all = append(all, p)
	}
	for _, r := range all {
		r.Ready()
	}
	return all
}

// Ready waits until the agent beside a proxy redirects to it: earlier connections
// bypass it.
func (r *Restarting) Ready() {
	r.t.Helper()
	require.Await(r.t, "the proxy on "+r.Host.Name+" has listeners", func() error {
		proxies, err := hoststest.Metric(r.Host, 9810, "psidecar_intercept_proxies")
		listeners, err2 := hoststest.Metric(r.Host, 9810, "psidecar_intercept_listeners")
		_, err3 := r.State()
		if err = errors.Join(err, err2, err3); err != nil || proxies != 1 || listeners != 2*float64(r.groups) { // of IPv4 and IPv6
			return fmt.Errorf("%v proxies with %v listeners, %v", proxies, listeners, err)
		}
		return nil
	})
}
