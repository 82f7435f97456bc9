package reroute

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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

// restarting is a process on a host that is started again when it is killed.
type restarting struct {
	t    *testing.T
	host *hosts.Host
	args []string

	mu      sync.Mutex
	process *hosts.Process
	stopped bool
	log     bytes.Buffer
	running sync.WaitGroup
}

// Write keeps the end of the log.
func (r *restarting) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log.Len() > 1<<20 {
		r.log.Reset()
	}
	return r.log.Write(p)
}

func keepRunning(t *testing.T, h *hosts.Host, args ...string) *restarting {
	t.Helper()
	r := &restarting{t: t, host: h, args: args}
	r.start()
	r.running.Go(func() {
		for {
			<-r.current().Done()
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
		r.kill()
		r.running.Wait()
		if t.Failed() {
			t.Logf("%s on %s:\n%s", args[1], h.Name, r.log.Bytes()[max(0, r.log.Len()-8192):])
		}
	})
	return r
}

func (r *restarting) start() {
	cmd := exec.Command(r.args[0], r.args[1:]...)
	cmd.Stderr = r
	p, err := r.host.StartIn("sidecar", cmd)
	if err != nil {
		r.t.Error(err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
}

func (r *restarting) current() *hosts.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

func (r *restarting) kill() { r.current().Signal(syscall.SIGKILL) }

// state asks the proxy at its page.
func (r *restarting) state() (s proxy.State, err error) {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return r.host.Dial(ctx, network, address)
		}}}
	response, err := client.Get("http://" + net.JoinHostPort(r.host.IPv4.String(), "9813") + "/api/v1/connections")
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

// moving are the flags of proxies that move keys as a planner says.
func (p *planner) moving() []string {
	return []string{"--act", "--handler", "add", "--planner", p.address}
}

// startFleet runs an agent and a proxy with these flags on every host, and returns
// the proxies.
func startFleet(t *testing.T, n *hosts.Net, flags ...string) []*restarting {
	t.Helper()
	return startFleetOf(t, hoststest.BuildJob(t, "cmd/psidecar"), n, flags...)
}

func startFleetOf(t *testing.T, program string, n *hosts.Net, flags ...string) []*restarting {
	t.Helper()
	dir, err := os.MkdirTemp("", "reroute-") // the socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	pins := filepath.Join(dir, "bpf")
	if err := os.Mkdir(pins, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", pins, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(pins, unix.MNT_DETACH) })
	var all []*restarting
	for _, h := range n.Hosts() {
		group, err := h.Group("job")
		if err != nil {
			t.Fatal(err)
		}
		socket, pin := filepath.Join(dir, h.Name+".sock"), filepath.Join(pins, h.Name)
		t.Cleanup(func() {
			if _, err := redirect.Unload(pin); err != nil {
				t.Error(err)
			}
		})
		http := func(port string) string { return net.JoinHostPort(h.IPv4.String(), port) }
		keepRunning(t, h, program, "agent", "--intercept", "--cgroup", group, "--host", h.Name, "--http", http("9810"),
			"--proxy-socket", socket, "--bpf-dir", pin)
		args := append([]string{program, "proxy", "--proxy-socket", socket, "--insecure", "--http", http("9813"),
			"--state-dir", filepath.Join(dir, h.Name), "--grace", "10s"}, flags...)
		all = append(all, keepRunning(t, h, args...))
	}
	for _, r := range all {
		r.ready()
	}
	return all
}

// ready waits until the agent beside a proxy redirects to it: earlier connections
// bypass it.
func (r *restarting) ready() {
	r.t.Helper()
	var said string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		proxies, err := r.host.Metric(9810, "psidecar_intercept_proxies")
		listeners, err2 := r.host.Metric(9810, "psidecar_intercept_listeners")
		_, err3 := r.state()
		if err = errors.Join(err, err2, err3); err == nil && proxies == 1 && listeners == 2 { // one of IPv4, one of IPv6
			return
		}
		said = fmt.Sprintf("%v proxies with %v listeners, %v", proxies, listeners, err)
	}
	r.t.Fatalf("the proxy on %s has no listeners: %s", r.host.Name, said)
}

// requests returns how many requests each proxy has seen, 0 where it does not
// answer.
func requests(proxies []*restarting) (all []uint64) {
	for _, x := range proxies {
		n := uint64(0)
		if s, err := x.state(); err == nil && len(s.Jobs) == 1 {
			n = s.Jobs[0].Plain + s.Jobs[0].Split
		}
		all = append(all, n)
	}
	return all
}

// counting reports whether all proxies have seen requests of another job than
// before.
func counting(before, now []uint64) bool {
	for i, n := range now {
		if n == 0 || n == before[i] {
			return false
		}
	}
	return true
}

// cut takes a host off the network for a while, and returns for how long.
func cut(t *testing.T, h *hosts.Host, d time.Duration) time.Duration {
	t.Helper()
	if err := h.Cut(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(d)
	if err := h.Heal(); err != nil {
		t.Fatal(err)
	}
	return d
}

// Proxies and the planner are killed and links are cut at random while keys
// move, for a minute. The sums stay exact. PSIDECAR_SOAK=30m does it for half an hour, in which
// 100,000 keys have to move at least.
func TestKilledWhileMoving(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	soak, steps := time.Minute, 30
	if s := os.Getenv("PSIDECAR_SOAK"); s != "" {
		var err error
		if soak, err = time.ParseDuration(s); err != nil {
			t.Fatalf("PSIDECAR_SOAK=%q: want a duration", s)
		}
		steps = 80
	}
	const k, ids = 4, 3000
	n := hoststest.New(t, hosts.Config{Hosts: k})
	p := newPlanner(t, n.Host(0))
	proxies := startFleet(t, n, p.moving()...)
	psjob := hoststest.BuildJob(t, "cmd/psjob")
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	name := net.JoinHostPort(n.Host(0).IPv4.String(), "9091")
	moved, kills, cuts, runs := uint64(0), 0, 0, 0
	for began := time.Now(); time.Since(began) < soak; runs++ {
		before := requests(proxies)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		mine := hosts.Program{psjob, "--json"}
		goesOn, end := hoststest.WhileTraining(t)
		count := hosts.Program{psjob, "--json", "--model", "count", "--count-keys", strconv.Itoa(ids), "--steps", strconv.Itoa(steps), "--count-while", goesOn}
		r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(k, count),
			Env: []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=200", "PS_DROP_MSG=1"}}.Start(ctx)
		if err != nil {
			t.Fatal(err)
		}
		last := make([]uint64, k)
		var nextKill time.Time // from when all workers count: earlier losses PS-lite does not retransmit
		untilOver(t, r, 50*time.Millisecond, func(bool) {
			if !p.busy(name) {
				p.propose(rng, name, ids, 400, k)
			}
			for i, x := range proxies {
				if s, err := x.state(); err == nil && len(s.Jobs) == 1 {
					now := s.Jobs[0].Moved
					if now >= last[i] {
						moved += now - last[i]
					} else {
						moved += now
					}
					last[i] = now
				}
			}
			if moved >= 100 && kills >= 3 {
				end()
			}
			if nextKill.IsZero() && counting(before, requests(proxies)) {
				nextKill = time.Now().Add(500 * time.Millisecond)
			}
			if !nextKill.IsZero() && time.Now().After(nextKill) {
				nextKill = time.Now().Add(time.Duration(500+rng.IntN(1500)) * time.Millisecond)
				switch rng.IntN(6) {
				case 0:
					kills++
					p.again()
				case 1:
					cuts++
					nextKill = nextKill.Add(cut(t, n.Host(rng.IntN(k)), time.Duration(500+rng.IntN(1000))*time.Millisecond))
				default:
					kills++
					proxies[rng.IntN(k)].kill()
				}
			}
		})
		cancel()
		if t.Failed() {
			for _, x := range proxies {
				s, err := x.state()
				t.Logf("%s: %+v %v", x.host.Name, s.Jobs, err)
			}
			break
		}
	}
	t.Logf("%d jobs, %d keys moved, %d kills, %d cuts", runs, moved, kills, cuts)
	if moved < 100 || kills < 3 {
		t.Errorf("%d keys moved, %d kills: too few to show anything", moved, kills)
	}
	if os.Getenv("PSIDECAR_SOAK") != "" && soak >= 30*time.Minute && moved < 100_000 {
		t.Errorf("only %d keys moved", moved)
	}
}
