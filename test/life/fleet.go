package life

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/hosts"
	proxies "github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// Ports of the services, their defaults.
const (
	agentHTTP   = 9810
	plannerAPI  = 9811
	plannerHTTP = 9812
	proxyHTTP   = 9813
)

// What the fleet is made of, and how long it may take to recover.
const (
	hostCount = 4
	nobody    = 65534 // who proxies and planner run as
	// recovery is how long a service may take until it is ready again, with a
	// processor to spare, and mostRecovery without.
	recovery     = time.Minute
	mostRecovery = 5 * time.Minute
)

// programs are the paths of the programs that run, in a folder that everybody may read, as some
// run without root.
type programs struct{ psidecar, psjob, peer, pattern string }

// sidecar is what a host has beside jobs.
type sidecar struct {
	host         *hosts.Host
	pins         string // folder of the agent's pinned programs
	disk         string // a small file system of its own, with the state in it
	state        string // folder of the proxy's state
	agent, proxy *service
}

// fleet is the hosts with all that runs on them. Its fields do not change once it has begun.
type fleet struct {
	t        testing.TB
	net      *hosts.Net
	patience *patience // a clock
	programs programs
	store    string // the planner's file
	planner  *service
	sidecars []*sidecar
}

// newFleet makes the hosts and starts all services, each with defaults as far as the test
// allows; proxies get more flags. It returns before they are ready. Cleanup functions end everything that is left at
// the end of the test, in the reverse order.
func newFleet(t testing.TB, j *journal, p *patience, more ...string) *fleet {
	t.Helper()
	require.Root(t)
	require.BPF(t)
	f := &fleet{t: t, patience: p, programs: build(t, j.path("bin")), net: hoststest.New(t, hosts.Config{Hosts: hostCount})}
	first := f.net.Host(0)
	f.store = filepath.Join(mountAt(t, j.path("planner"), "tmpfs", "size=64m,mode=777"), "plans")
	bpffs := mountAt(t, j.path("bpf"), "bpf", "")
	// A process that ends by itself is a failure, whenever it does.
	ended := func(s *service, err error) {
		words := s.lastWords()
		if lacksRoomForStore(s.Group, words) {
			j.say("%s ended, as it may (its disk is full, and its store was lost): %v", s, err)
			return
		}
		j.fail("%s ended: %v\n%s\nthreads in uninterruptible sleep: %s", s, err, words, hoststest.Sleepers())
	}
	begin := func(kind string, h *hosts.Host, uid uint32, args ...string) *service {
		s := &service{Service: hoststest.Service{Group: kind, Host: h}, uid: uid, ended: ended, log: j.path("logs", kind+"-"+h.Name+".log"),
			args: append([]string{f.programs.psidecar, kind}, args...)}
		require.NoError(t, s.startAgain())
		t.Cleanup(func() {
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	for _, group := range []string{agent, proxy, planner, loadGroup} {
		for _, h := range f.net.Hosts() {
			if _, err := h.Group(group); err != nil { // not in passing, so that all is there from the start
				t.Fatal(err)
			}
		}
	}
	for _, h := range f.net.Hosts() {
		pins := filepath.Join(bpffs, h.Name)
		t.Cleanup(func() {
			if _, err := redirect.Unload(pins); err != nil {
				t.Error(err)
			}
		})
	}
	f.planner = begin(planner, first, nobody, "--listen", first.Address(plannerAPI), "--insecure", "--socket", "", "--http", first.Address(plannerHTTP), "--store", f.store, "--act", "--decide-every", "1s") // so that keys move in short jobs
	// Each host has an agent and a proxy. The agent comes first: it makes the folder of the
	// proxy's state.
	for _, h := range f.net.Hosts() {
		s := &sidecar{host: h, pins: filepath.Join(bpffs, h.Name)}
		s.disk = mountAt(t, j.path(h.Name), "tmpfs", "size=96m,mode=755")
		s.state = filepath.Join(s.disk, "state") // which the agent makes
		// On the disk that fills up, as with a real host's /run. A short name, since paths of
		// sockets are bounded.
		socket := filepath.Join(s.disk, "s")
		args := []string{"--intercept", "--adopt", "--host", h.Name, "--http", h.Address(agentHTTP), "--planner", first.Address(plannerAPI),
			"--proxy-socket", socket, "--proxy-uid", strconv.Itoa(nobody), "--bpf-dir", s.pins}
		for _, group := range groups {
			folder := require.Value(h.Group(group))(t)
			args = append(args, "--cgroup", folder)
		}
		s.agent = begin(agent, h, 0, args...)
		s.proxy = begin(proxy, h, nobody, append([]string{"--host", h.Name, "--http", h.Address(proxyHTTP), "--proxy-socket", socket, "--insecure",
			"--state-dir", s.state, "--planner", first.Address(plannerAPI), "--act", "--allow-probe"}, more...)...)
		f.sidecars = append(f.sidecars, s)
	}
	return f
}

// build builds the programs into dir.
func build(t testing.TB, dir string) programs {
	t.Helper()
	require.NoError(t, os.Mkdir(dir, 0o755))
	p := programs{psidecar: filepath.Join(dir, "psidecar"), psjob: filepath.Join(dir, "psjob"), pattern: filepath.Join(dir, "job"), peer: hoststest.BuildPeer(t)}
	for folder, path := range map[string]string{"cmd/psidecar": p.psidecar, "cmd/psjob": p.psjob, "test/matrix/job": p.pattern} {
		program := require.Value(os.ReadFile(hoststest.BuildJob(t, folder)))(t)
		require.NoError(t, os.WriteFile(path, program, 0o755))
	}
	return p
}

// mountAt mounts a file system in a new folder until the end of the test.
func mountAt(t testing.TB, dir, kind, options string) string {
	t.Helper()
	require.NoError(t, os.Mkdir(dir, 0o755))
	if err := unix.Mount(kind, dir, kind, 0, options); err != nil {
		t.Fatalf("mounting %s: %v", kind, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmounting %s: %v", dir, err)
		}
	})
	return dir
}

// services returns all services, the planner first.
func (f *fleet) services() []*service {
	all := []*service{f.planner}
	for _, s := range f.sidecars {
		all = append(all, s.agent, s.proxy)
	}
	return all
}

// service returns the service of a kind on a host; the host does not matter for the planner.
func (f *fleet) service(kind string, host int) *service {
	switch kind {
	case planner:
		return f.planner
	case agent:
		return f.sidecars[host].agent
	}
	return f.sidecars[host].proxy
}

// await calls ask until it returns no error, for as long as a recovery may take on a machine as
// busy as this one is. If ctx ends it returns ask's last error.
func (f *fleet) await(ctx context.Context, ask func() error) error {
	for began, spare := time.Now(), f.patience.now(); ; time.Sleep(50 * time.Millisecond) {
		err := ask()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if waited, had := time.Since(began), f.patience.now()-spare; had > recovery || waited > mostRecovery {
			return fmt.Errorf("after %.0f s, %.0f of them with a processor to spare: %w", waited.Seconds(), had.Seconds(), err)
		}
	}
}

// allReady returns an error while any service is not ready.
func (f *fleet) allReady() error {
	errs := []error{f.plannerReady()}
	for i := range f.sidecars {
		errs = append(errs, f.ready(i))
	}
	return errors.Join(errs...)
}

// plannerReady returns an error while the planner is not ready.
func (f *fleet) plannerReady() error {
	_, err := hoststest.Get(f.planner.Host, plannerHTTP, "/readyz")
	return err
}

// ready returns an error while the proxy of a host does not have its listeners, of which the
// job's two groups need one each.
func (f *fleet) ready(host int) error {
	s := f.sidecars[host]
	proxies, err := hoststest.Metric(s.host, agentHTTP, "psidecar_intercept_proxies")
	if err != nil {
		return err
	}
	listeners, err := hoststest.Metric(s.host, agentHTTP, "psidecar_intercept_listeners")
	if err != nil {
		return err
	}
	if proxies != 1 || listeners < 2 {
		return fmt.Errorf("the agent on %s has %v proxies and %v listeners", s.host.Name, proxies, listeners)
	}
	_, err = hoststest.Get(s.host, proxyHTTP, "/readyz")
	return err
}

// connections returns the state of a host's proxy.
func (f *fleet) connections(host int) (state proxies.State, err error) {
	body, err := hoststest.Get(f.sidecars[host].host, proxyHTTP, "/api/v1/connections")
	if err != nil {
		return state, err
	}
	return state, json.Unmarshal(body, &state)
}

// dump makes all services print their goroutines into their logs, which ends them; they start
// again. It is for people who look for the cause of a failure.
func (f *fleet) dump() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // one that is suspended says nothing
	defer cancel()
	var all []*hosts.Process
	for _, s := range f.services() {
		all = append(all, s.dump())
	}
	for _, p := range all {
		select {
		case <-p.Done():
		case <-ctx.Done():
		}
	}
}

// stop ends everything in order. Nothing must be pinned after that, and no log may have a line
// that no process may print. The planner ends last, as the others report to it.
func (f *fleet) stop(j *journal) {
	for _, s := range f.sidecars {
		for _, which := range []*service{s.proxy, s.agent} {
			if err := which.stop(); err != nil {
				j.fail("%v", err)
			}
		}
		if left, err := filepath.Glob(filepath.Join(s.pins, "*")); err != nil || len(left) > 0 {
			j.fail("the agent on %s left what it had pinned: %v %v", s.host.Name, left, err)
		}
	}
	if err := f.planner.stop(); err != nil {
		j.fail("%v", err)
	}
	for _, s := range f.services() {
		if text := s.grave(); text != "" {
			j.fail("%s said: %s", s, text)
		}
	}
}
