// Package sidecar runs psidecar up beside a test's job: one process on each host, which
// intercepts what runs in the host's cgroup "job". Its input is a host and flags; its output is
// what the process serves over HTTP, its log, and whether it ended in order. Tests of several
// packages use it, with the hosts of internal/hosts; it needs root and a kernel with BPF.
package sidecar

import (
	"cmp"
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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// Ports of a sidecar, on all addresses of its host. The planner's are open if it has a planner
// of its own.
const (
	Page        = 9810
	Planner     = 9811
	PlannerPage = 9812
)

// patience bounds each wait: for a start, an end or an answer. It is far longer than these
// take, also on a busy machine.
const patience = 10 * time.Minute

// Sidecar is a psidecar up that runs on a host. Its methods may be called concurrently, except
// for Stop.
type Sidecar struct {
	Host    *hosts.Host
	Process *hosts.Process
	// Pins is where its programs are pinned.
	Pins string
	// Control is where its proxy takes orders.
	Control string
	client  http.Client // dials from the host's network namespace
	log     hosts.Log   // its standard error
}

// Start runs program as psidecar up in the host's cgroup of that name, with these flags besides
// its own, and returns when it has its listeners open. It has a state folder of its own, as a
// host has, unless the flags name one. With --kubernetes among the flags it finds jobs in pods,
// wherever their cgroups are, and has no listeners before; Start then returns when it is ready.
//
// If it does not start the test fails. At the end of the test it is killed, if it still runs,
// and what it left in the kernel is removed.
func Start(t testing.TB, h *hosts.Host, program, group string, flags ...string) *Sidecar {
	t.Helper()
	s := &Sidecar{Host: h, Pins: filepath.Join(bpffs(t), "pins")}
	s.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return h.Dial(ctx, network, address)
	}}
	s.Control = filepath.Join(short(t), "control.sock")
	cgroup, err := h.Group("job")
	require.NoError(t, err)
	any := func(port int) string { return net.JoinHostPort("0.0.0.0", strconv.Itoa(port)) }
	inPods := slices.Contains(flags, "--kubernetes")
	if !inPods {
		flags = append([]string{"--cgroup", cgroup}, flags...)
	}
	// Those with links of a kind of their own leave it to up where the planner listens.
	if !slices.Contains(flags, "--tls-cert") && !slices.Contains(flags, "--insecure") {
		flags = append([]string{"--insecure", "--planner-listen", any(Planner)}, flags...)
	}
	args := append([]string{"up", "--host", h.Name, "--http", any(Page),
		"--planner-http", any(PlannerPage), "--planner-socket", "", "--control-socket", s.Control, "--bpf-dir", s.Pins, "--state-dir", t.TempDir()}, flags...)
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "PSIDECAR_CODEC=compact") // so that all connections go through it
	cmd.Stderr = &s.log
	s.Process = require.Value(h.StartIn(group, cmd))(t)
	t.Cleanup(func() { s.clean(t) })
	require.Await(t, "psidecar up on "+h.Name+" listens", func() error {
		open, err := s.Metric(t.Context(), "psidecar_intercept_listeners")
		if err == nil && open == 0 && inPods {
			_, err = s.Ask(t.Context(), http.MethodGet, Page, "/readyz", "")
		}
		if err == nil && (open > 0 || inPods) {
			return nil
		}
		select {
		case <-s.Process.Done():
			t.Fatalf("psidecar up on %s has ended:\n%s", h.Name, s.Log())
		default:
		}
		return fmt.Errorf("%v listeners are open, %w", open, cmp.Or(err, errors.New("want some")))
	})
	return s
}

// short makes a folder with a name short enough for sockets, which t.TempDir's are not.
func short(t testing.TB) string {
	t.Helper()
	dir := require.Value(os.MkdirTemp("", "ps"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// bpffs mounts a BPF file system until the end of the test.
func bpffs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal("mounting a BPF file system:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error("unmounting a BPF file system:", err)
		}
	})
	return dir
}

// clean kills it if it still runs and removes its pins. It prints the log if the test has
// failed.
func (s *Sidecar) clean(t testing.TB) {
	select {
	case <-s.Process.Done():
	default:
		if err := s.Process.Kill(); err != nil {
			t.Error(err)
		}
		<-s.Process.Done()
	}
	if _, err := redirect.Unload(s.Pins); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Logf("psidecar up on %s:\n%s", s.Host.Name, s.Log())
	}
}

// Log returns what it has logged so far.
func (s *Sidecar) Log() string { return s.log.String() }

// Get decodes the JSON at a path of one of its ports into v.
func (s *Sidecar) Get(ctx context.Context, port int, path string, v any) error {
	body, err := s.Ask(ctx, http.MethodGet, port, path, "")
	if err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// Connections returns the state of its proxy.
func (s *Sidecar) Connections(ctx context.Context) (state proxy.State, err error) {
	return state, s.Get(ctx, Page, "/api/v1/connections", &state)
}

// Unguarded returns when no job counts as running any more whose keys are, or were, displaced,
// and the agent knows it: from then on Stop leaves nothing in the kernel. That no cgroup is
// closed is not enough, since a job may be shorter than what it takes to close its cgroup.
func (s *Sidecar) Unguarded(t testing.TB) {
	t.Helper()
	require.Await(t, "no job on "+s.Host.Name+" counts as running", func() error {
		state := require.Value(s.Connections(t.Context()))(t)
		running := slices.ContainsFunc(state.Jobs, func(j jobs.State) bool {
			return j.Guarded || !j.Over && (j.Displaced > 0 || j.Holds > 0 || !j.Ready)
		})
		if running || state.Guard != nil && state.Guard.Closed+state.Guard.Pending > 0 {
			return fmt.Errorf("%+v; cgroups: %+v", state.Jobs, state.Guard)
		}
		return nil
	})
}

// Metric returns the sum of the agent's metrics of that name, 0 if there is none. The name may
// have labels, as in a line of metrics.
func (s *Sidecar) Metric(ctx context.Context, name string) (sum float64, err error) {
	body, err := s.Ask(ctx, http.MethodGet, Page, "/metrics", "")
	if err != nil {
		return 0, err
	}
	return hoststest.SumMetrics(body, name)
}

// Address returns host:port of one of its ports.
func (s *Sidecar) Address(port int) string {
	return s.Host.Address(port)
}

// Ask makes a request with text as its body at one of its ports, and returns the body of the
// answer. Any status but 200 is an error.
func (s *Sidecar) Ask(ctx context.Context, method string, port int, path, text string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	where := "http://" + s.Address(port) + path
	request, err := http.NewRequestWithContext(ctx, method, where, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.1000s", where, response.Status, body)
	}
	return body, err
}

// Order makes a request with text as its body to its proxy's control socket, as root.
func (s *Sidecar) Order(ctx context.Context, method, path, text string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://control"+path, strings.NewReader(text))
	if err != nil {
		return err
	}
	response, err := control.Client(s.Control).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.1000s", path, response.Status, body)
	}
	return err
}

// Stop ends it in order. The test fails if it does not end so, or leaves something in the
// kernel.
func (s *Sidecar) Stop(t testing.TB) {
	t.Helper()
	require.NoError(t, s.Process.Signal(syscall.SIGTERM))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Process.Wait(ctx); err != nil {
		t.Errorf("psidecar up on %s ends with %v", s.Host.Name, err)
	}
	if _, err := os.Stat(s.Pins); err == nil {
		t.Errorf("psidecar up on %s left what it had pinned", s.Host.Name)
	}
}
