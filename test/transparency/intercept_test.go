package transparency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) {
	hoststest.Main(m, map[string]func([]string) error{"proxy": runProxy})
}

const nobody = 65534

// runProxy is a proxy without privileges. It prints its state when it ends.
func runProxy(args []string) error {
	mesh, err := net.Listen("tcp", ":9811")
	if err != nil {
		return err
	}
	if err := errors.Join(syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody)); err != nil {
		return err
	}
	var client *handover.Client
	owner := func(ctx context.Context, netns uint64, at netip.AddrPort) (uint64, bool, error) {
		return client.Owner(ctx, netns, at)
	}
	p, err := proxy.New(proxy.Options{MeshPort: 9811, Insecure: true, Reach: proxy.Reach{Owner: owner}, Codecs: []relay.Codec{compact.New(compact.DefaultLimits)}})
	if err != nil {
		return err
	}
	ready := make(chan struct{}, 2)
	client = handover.NewClient(args[0], func(ctx context.Context, l *handover.Listener) error {
		ready <- struct{}{}
		return p.Serve(ctx, proxy.Listener{Listener: l, Destination: proxy.OriginalDestination})
	})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return client.Run(ctx) })
	g.Go(func() error { return p.Run(ctx, nil, []net.Listener{mesh}) })
	<-ready
	<-ready // IPv4 and IPv6
	fmt.Println("ready")
	if err := g.Wait(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(p.State())
}

// startIntercepting is the agent and proxy of a host.
type startIntercepting struct {
	host         *hosts.Host
	pins         string
	agent, proxy *hoststest.Child
}

func startSidecar(t *testing.T, h *hosts.Host, psidecar, dir, bpffs string) *startIntercepting {
	t.Helper()
	s := &startIntercepting{host: h, pins: filepath.Join(bpffs, h.Name)}
	socket := filepath.Join(dir, h.Name+".sock")
	cgroup := require.Value(h.Group("job"))(t)
	t.Cleanup(func() {
		if _, err := redirect.Unload(s.pins); err != nil {
			t.Error(err)
		}
	})
	s.agent = hoststest.Start(t, h, "agent", exec.Command(psidecar, "agent", "--intercept", "--cgroup", cgroup, "--http", "",
		"--proxy-socket", socket, "--proxy-uid", fmt.Sprint(nobody), "--bpf-dir", s.pins))
	s.proxy = hoststest.Start(t, h, "proxy", hoststest.Task("proxy", socket))
	if line := s.proxy.Line(); line != "ready" {
		t.Fatalf("the proxy on %s: %q", h.Name, line)
	}
	return s
}

// stop ends the proxy in order and returns its last words and what the kernel
// counted.
func (s *startIntercepting) stop(t *testing.T) (state proxy.State, counts redirect.Counts) {
	t.Helper()
	r, err := redirect.Open(redirect.Options{Dir: s.pins})
	require.NoError(t, err)
	defer r.Close()
	counts = require.Value(r.Counts())(t)
	require.NoError(t, s.proxy.Signal(syscall.SIGTERM))
	text := s.proxy.Rest()
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		t.Fatalf("the proxy of %s ends with %q: %v", s.host.Name, text, err)
	}
	return state, counts
}

// TestJobs: jobs of psjob and of the C++ peer, intercepted on all hosts or on
// some, end as they do without: their sums are exact.
func TestJobs(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	psidecar, psjob, own := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob"), hosts.Program{hoststest.BuildPeer(t)}
	countWorker := hosts.Program{psjob, "--json", "--model", "count", "--steps", "40"}
	peerWorker := append(own[:1:1], "--keys", "1000", "--space", "1000", "--shift", "0")
	mine := hosts.Program{psjob, "--json"}
	for _, tc := range []struct {
		name     string
		sidecars int // hosts that have one
		ipv6     bool
		job      hosts.Job
	}{
		{"psjob", 3, false, hosts.Job{Scheduler: mine, Servers: hosts.Repeat(3, mine), Workers: hosts.Repeat(3, countWorker)}},
		{"psjob, IPv6", 3, true, hosts.Job{Scheduler: mine, Servers: hosts.Repeat(3, mine), Workers: hosts.Repeat(3, countWorker)}},
		{"peer", 3, false, hosts.Job{Scheduler: own, Servers: hosts.Repeat(3, own), Workers: hosts.Repeat(3, peerWorker)}},
		{"peer's servers, psjob's workers, on some hosts", 2, false, hosts.Job{Scheduler: own, Servers: hosts.Repeat(3, own), Workers: hosts.Repeat(3, countWorker)}},
		{"psjob's servers, peer's workers, on one host", 1, false, hosts.Job{Scheduler: mine, Servers: hosts.Repeat(3, mine), Workers: hosts.Repeat(3, peerWorker)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := hoststest.New(t, hosts.Config{Hosts: 3})
			dir, bpffs := folders(t)
			var sidecars []*startIntercepting
			for _, h := range n.Hosts()[:tc.sidecars] {
				sidecars = append(sidecars, startSidecar(t, h, psidecar, dir, bpffs))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			tc.job.Hosts, tc.job.IPv6 = n.Hosts(), tc.ipv6
			if _, err := tc.job.Run(ctx); err != nil { // workers fail where a sum is wrong
				t.Fatal(err)
			}
			for _, s := range sidecars {
				state, counts := s.stop(t)
				// Every node connects to every other of another role.
				if counts[redirect.ReasonRedirected] < 5 || counts[redirect.ReasonAnswered] != counts[redirect.ReasonRedirected] {
					t.Errorf("%s: %v", s.host.Name, counts)
				}
				for reason, count := range counts {
					if c := redirect.Reason(reason).Class(); count > 0 && c != redirect.ClassRedirected && c != redirect.ClassAnswered {
						t.Errorf("%s: %s %d times", s.host.Name, redirect.Reason(reason), count)
					}
				}
				require.NoError(t, s.agent.Signal(syscall.SIGTERM))
				if err := s.agent.Wait(ctx); err != nil {
					t.Errorf("%s: the agent: %v", s.host.Name, err)
				}
				if _, err := os.Stat(s.pins); err == nil {
					t.Errorf("%s: the agent left what it had pinned", s.host.Name)
				}
				t.Logf("%s: %d connects redirected; errors of the proxy: %v", s.host.Name, counts[redirect.ReasonRedirected], state.Errors)
			}
		})
	}
}

// folders are one that everybody can reach, for sockets, and one with a BPF
// file system.
func folders(t *testing.T) (dir, bpffs string) {
	t.Helper()
	dir = require.Value(os.MkdirTemp("", "psd-intercept-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	bpffs = t.TempDir()
	require.NoError(t, unix.Mount("bpf", bpffs, "bpf", 0, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(bpffs, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, bpffs
}
