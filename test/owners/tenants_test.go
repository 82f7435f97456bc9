package owners

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/certs"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

func TestMain(m *testing.M) {
	hoststest.Main(m, map[string]func([]string) error{"forge": forge, "sink": sink})
}

const (
	tenantPatience = 10 * time.Minute
	ids            = 2000
)

// scatter writes a placement in which every key belongs to any of two servers.
func scatter(t *testing.T) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	keys := hoststest.JobKeys(t, ids)
	var owners []int32
	for range keys {
		owners = append(owners, rng.Int32N(2))
	}
	return hoststest.WritePlacement(t, t.TempDir(), []int{1, 0}, keys, owners)
}

// A job whose keys are displaced goes on, its sums exact,
// while processes in another cgroup of its hosts, whose connections the same
// proxies carry, forge node tables and answers of servers, and ask for a port
// that is no job's.
func TestForgingTenants(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	authority, placement := certs.NewAuthority(t, "mesh"), scatter(t)
	var all []*sidecar.Sidecar
	for _, h := range n.Hosts() {
		evil := require.Value(h.Group("evil"))(t)
		files := authority.Issue(t, t.TempDir(), h.Name+".mesh", time.Now().Add(time.Hour), certs.Parts...)
		all = append(all, sidecar.Start(t, h, program, "sidecar", "--cgroup", evil, "--placement", placement, "--state-dir", t.TempDir(),
			"--insecure=false", "--planner-listen", "127.0.0.1:9811", "--tls-cert", files.Cert, "--tls-key", files.Key, "--tls-ca", files.CA))
	}
	private := hoststest.Start(t, n.Host(0), "private", hoststest.Task("sink")).Line()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	mine := hosts.Program{psjob, "--json"}
	goesOn, end := hoststest.WhileTraining(t)
	count := hosts.Program{psjob, "--json", "--model", "count", "--count-keys", strconv.Itoa(ids), "--steps", "50", "--count-while", goesOn}
	r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(2, mine), Workers: hosts.Repeat(2, count)}.Start(ctx)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- r.Wait() }()
	await(t, "requests are split on both hosts", ended, func() bool { return split(t, all[0]) > 0 && split(t, all[1]) > 0 })

	scheduler := netip.AddrPortFrom(n.Host(0).IPv4, 9091).String()
	var forgers []*hoststest.Child
	for i, h := range n.Hosts() {
		target := worker(t, n.Host(1-i))
		forgers = append(forgers, hoststest.Start(t, h, "evil", hoststest.Task("forge", scheduler, target, n.Host(0).IPv4.String()+":"+private)))
	}
	for i, forger := range forgers {
		for _, what := range []string{"table", "server0", "server1"} {
			if got := forger.Line(); got != what+" refused" {
				t.Errorf("%s, of host%d: %s", what, i, got)
			}
		}
		if got := forger.Line(); i == 1 && got != "foreign refused" {
			t.Errorf("a port that is no job's: %s", got)
		}
	}
	end()
	if err := <-ended; err != nil { // workers fail where a sum is wrong
		t.Error(err)
	}
	for i, s := range all {
		state := require.Value(s.Connections(ctx))(t)
		t.Logf("%s: refused %v, errors %v", s.Host.Name, state.Refused, state.Errors)
		if len(state.Jobs) != 1 {
			t.Errorf("%s knows of %d jobs, want 1", s.Host.Name, len(state.Jobs))
		}
		if state.Refused["scheduler"] == 0 || state.Refused["node"] == 0 {
			t.Errorf("%s has refused %v: tables of its own processes and connections in the name of nodes should be among it", s.Host.Name, state.Refused)
		}
		if i == 0 && state.Errors["foreign_port"] == 0 {
			t.Errorf("%s has refused no port: %v", s.Host.Name, state.Errors)
		}
	}
}

// await waits for something while the job runs.
func await(t *testing.T, what string, ended chan error, ok func() bool) {
	t.Helper()
	require.Await(t, what, func() error {
		if ok() {
			return nil
		}
		select {
		case err := <-ended:
			t.Fatalf("the job ended before this was so: %s: %v", what, err)
		default:
		}
		return errors.New("the job goes on")
	})
}

func split(t *testing.T, s *sidecar.Sidecar) (sum uint64) {
	t.Helper()
	state := require.Value(s.Connections(t.Context()))(t)
	for _, j := range state.Jobs {
		sum += j.Split
	}
	return sum
}

// worker returns where the job's worker on a host listens.
func worker(t *testing.T, h *hosts.Host) string {
	t.Helper()
	group := require.Value(h.Group("job"))(t)
	s, err := discover.NewFinder(os.DirFS("/proc")).Take(discover.Look{Watched: func(cgroup string) bool { return strings.HasSuffix(group, cgroup) }})
	require.NoError(t, err)
	for _, p := range s.Processes {
		for _, at := range p.Listens {
			if p.Role == "worker" && at.Addr() == h.IPv4 {
				return at.String()
			}
		}
	}
	t.Fatalf("no worker of the job listens on %s: %+v", h.Name, s.Processes)
	return ""
}
