package interop

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// pslite returns PS-lite's program of one of those names, and skips without
// PSLITE_BIN: they are no part of this project.
func pslite(t testing.TB, names ...string) hosts.Program {
	t.Helper()
	dir := require.Asked(t, "PSLITE_BIN", "the folder of PS-lite's own test programs")
	for _, name := range names {
		if path := filepath.Join(dir, name); executable(path) {
			return hosts.Program{path}
		}
	}
	t.Fatalf("PSLITE_BIN=%s has none of %s", dir, strings.Join(names, ", "))
	return nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// A PS-lite server may not be ready when all nodes are there, and ends when a
// request comes too early; its own workers are slow enough as a rule.
const patience = "500"

// TestPSLiteAlone shows that the ground is sound: PS-lite's programs run on
// hosts as they do on loopback. PS_RESEND is not among the settings: on bare
// loopback, too, a job of theirs in about 20 hangs with it, or aborts at its
// end when PS_DROP_MSG loses the last messages.
func TestPSLiteAlone(t *testing.T) {
	for _, at := range []place{loopback, {name: "hosts", hosts: 4}} {
		for _, test := range []struct {
			name  string
			names []string
			env   []string
			says  string // by every worker
		}{
			{"connection", []string{"test_connection", "connection_test"}, nil, ""},
			{"simple app", []string{"test_simple_app", "simple_app_test"}, nil, ""},
			{"kv app", []string{"test_kv_app", "kv_app_test"}, nil, "error: 0"},
			{"kv app with heartbeats", []string{"test_kv_app", "kv_app_test"}, []string{"PS_HEARTBEAT_INTERVAL=1"}, "error: 0"},
		} {
			t.Run(at.name+"/"+test.name, func(t *testing.T) {
				program := pslite(t, test.names...)
				r := runPSLite(t, at, hosts.Job{Scheduler: program, Servers: hosts.Repeat(2, program), Workers: hosts.Repeat(2, program), Env: test.env})
				checkSays(t, r.Workers, test.says)
			})
		}
	}
}

func TestPeerWithPSLite(t *testing.T) {
	kv := pslite(t, "test_kv_app", "kv_app_test")
	own := hosts.Program{hoststest.BuildPeer(t)}
	for _, at := range []place{loopback, {name: "hosts", hosts: 3}} {
		t.Run(at.name+"/their scheduler and servers", func(t *testing.T) {
			for _, load := range workloads {
				if load.long != 1 {
					continue // its example server has one value a key
				}
				r := runPSLite(t, at, hosts.Job{Scheduler: kv, Servers: hosts.Repeat(2, kv), Workers: hosts.Repeat(3, load.worker(own, "--wait", patience))})
				peerWorkers(t, r.Workers)
			}
		})
		t.Run(at.name+"/their workers", func(t *testing.T) {
			r := runPSLite(t, at, hosts.Job{Scheduler: own, Servers: hosts.Repeat(2, own), Workers: hosts.Repeat(2, kv)})
			checkSays(t, r.Workers, "error: 0")
		})
		t.Run(at.name+"/their servers", func(t *testing.T) {
			worker := workloads[0].worker(own, "--wait", patience)
			r := runPSLite(t, at, hosts.Job{Scheduler: own, Servers: []hosts.Program{kv, own}, Workers: hosts.Repeat(2, worker)})
			peerWorkers(t, r.Workers)
		})
	}
}

// runPSLite is run for jobs with servers of PS-lite's. On a busy machine such a
// server can get a request before it is ready, and ends; that job is started
// once more.
func runPSLite(t testing.TB, at place, j hosts.Job) *hosts.Running {
	t.Helper()
	for range 2 {
		r, err := try(t, at, j)
		if err == nil {
			return r
		}
		if !strings.Contains(err.Error(), "timeout (5 sec) to wait App") {
			t.Fatal(err)
		}
		t.Logf("a server of PS-lite's was not ready: %v", err)
	}
	return run(t, at, j)
}

// checkSays wants every worker to say so.
func checkSays(t *testing.T, workers []*hosts.Node, want string) {
	t.Helper()
	for _, n := range workers {
		if said := n.Stdout.String() + n.Stderr.String(); !strings.Contains(said, want) {
			t.Errorf("worker %d said %q, want %q in it", n.Index, said, want)
		}
	}
}
