package interop

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// psjobWorker is what the tests read of a worker's report; it has compared the
// sums of all keys itself, and failed where one was wrong.
type psjobWorker struct {
	Rank    int   `json:"rank"`
	Checked int   `json:"checked"` // keys whose sums it compared
	Keys    int   `json:"keys"`
	Pushes  int64 `json:"pushes"` // of keys
	Pulls   int64 `json:"pulls"`
	PushB   int64 `json:"push_bytes"` // of values
	PullB   int64 `json:"pull_bytes"`

	PushSeconds []float64 `json:"push_seconds"`
	PullSeconds []float64 `json:"pull_seconds"`
}

// psjobServer is what they read of a server's.
type psjobServer struct {
	Keys   int `json:"keys"`
	Pushes int `json:"pushes"` // requests
	Pulls  int `json:"pulls"`
}

// reports reads what nodes printed.
func reports[T any](t testing.TB, nodes []*hosts.Node) []T {
	t.Helper()
	all := make([]T, len(nodes))
	for i, n := range nodes {
		if err := json.Unmarshal(n.Stdout.Bytes(), &all[i]); err != nil {
			t.Fatalf("%s %d printed %q: %v", n.Role, n.Index, n.Stdout.String(), err)
		}
	}
	return all
}

// counts are workloads of psjob's that push whole numbers.
var counts = []struct {
	name string
	args []string
}{
	{"scalar", nil},
	{"small ids", []string{"--key-map", "identity"}},
	{"long", []string{"--value-length", "30"}},
	{"lens", []string{"--count-lens"}},
	{"async", []string{"--async", "--count-wander", "10"}},
}

// countWorker is psjob's command line for one of them.
func countWorker(psjob string, args ...string) hosts.Program {
	return append(hosts.Program{psjob, "--json", "--model", "count", "--steps", "40"}, args...)
}

// checkPsjobWorkers wants every worker to have compared sums, and returns all
// keys and values that went either way.
func checkPsjobWorkers(t *testing.T, nodes []*hosts.Node) (total psjobWorker) {
	t.Helper()
	for _, w := range reports[psjobWorker](t, nodes) {
		if w.Checked == 0 || w.Pushes == 0 || w.Pulls == 0 {
			t.Errorf("worker %d: %+v", w.Rank, w)
		}
		total.Pushes += w.Pushes
		total.Pulls += w.Pulls
		total.PushB += w.PushB
		total.PullB += w.PullB
	}
	return total
}

func TestPsjobServesPeer(t *testing.T) {
	psjob, own := hoststest.BuildJob(t, "cmd/psjob"), hosts.Program{hoststest.BuildPeer(t)}
	for _, at := range places {
		for _, load := range workloads {
			t.Run(at.name+"/"+load.name, func(t *testing.T) {
				server := hosts.Program{psjob, "--json"}
				const workers = 3
				r := run(t, at, hosts.Job{Scheduler: server, Servers: hosts.Repeat(2, server), Workers: hosts.Repeat(workers, load.worker(own))})
				each := peerWorkers(t, r.Workers)
				keys := 0
				for _, s := range reports[psjobServer](t, r.Servers) {
					keys += s.Keys
				}
				if want := each[0].Keys + (workers-1)*load.shift; keys != want {
					t.Errorf("the servers have %d keys, the workers pushed %d different ones", keys, want)
				}
			})
		}
	}
}

func TestPeerServesPsjob(t *testing.T) {
	psjob, own := hoststest.BuildJob(t, "cmd/psjob"), hosts.Program{hoststest.BuildPeer(t)}
	for _, at := range places {
		for _, load := range counts {
			t.Run(at.name+"/"+load.name, func(t *testing.T) {
				r := run(t, at, hosts.Job{Scheduler: own, Servers: hosts.Repeat(2, own), Workers: hosts.Repeat(3, countWorker(psjob, load.args...))})
				total := checkPsjobWorkers(t, r.Workers)
				var seen hoststest.PeerServer
				for _, s := range reports[hoststest.PeerServer](t, r.Servers) {
					seen.KeysPushed += s.KeysPushed
					seen.KeysPulled += s.KeysPulled
					seen.ValuesPushed += s.ValuesPushed
					seen.ValuesPulled += s.ValuesPulled
				}
				got := fmt.Sprint(seen.KeysPushed, seen.KeysPulled, 4*seen.ValuesPushed, 4*seen.ValuesPulled)
				if want := fmt.Sprint(total.Pushes, total.Pulls, total.PushB, total.PullB); got != want {
					t.Errorf("keys pushed and pulled, bytes pushed and pulled: the servers saw %s, the workers say %s", got, want)
				}
			})
		}
	}
}

func TestServersOfBothInOneJob(t *testing.T) {
	psjob, own := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}, hosts.Program{hoststest.BuildPeer(t)}
	for _, at := range []place{loopback, {name: "hosts", hosts: 3}} {
		for name, scheduler := range map[string]hosts.Program{"psjob's scheduler": psjob, "the peer's scheduler": own} {
			t.Run(at.name+"/"+name, func(t *testing.T) {
				servers := []hosts.Program{psjob, own, psjob}
				r := run(t, at, hosts.Job{Scheduler: scheduler, Servers: servers, Workers: hosts.Repeat(3, countWorker(psjob[0]))})
				checkPsjobWorkers(t, r.Workers)
				r = run(t, at, hosts.Job{Scheduler: scheduler, Servers: servers, Workers: hosts.Repeat(3, workloads[0].worker(own))})
				peerWorkers(t, r.Workers)
			})
		}
	}
}

func TestPsjobWithPSLite(t *testing.T) {
	kv := pslite(t, "test_kv_app", "kv_app_test")
	psjob := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}
	count := countWorker(psjob[0], "--start-after", patience+"ms")
	for _, at := range []place{loopback, {name: "hosts", hosts: 3}} {
		t.Run(at.name+"/their workers", func(t *testing.T) {
			r := runPSLite(t, at, hosts.Job{Scheduler: psjob, Servers: hosts.Repeat(2, psjob), Workers: hosts.Repeat(2, kv)})
			checkSays(t, r.Workers, "error: 0")
		})
		t.Run(at.name+"/their scheduler and servers", func(t *testing.T) {
			r := runPSLite(t, at, hosts.Job{Scheduler: kv, Servers: hosts.Repeat(2, kv), Workers: hosts.Repeat(3, count)})
			checkPsjobWorkers(t, r.Workers)
		})
		t.Run(at.name+"/their servers beside ours", func(t *testing.T) {
			r := runPSLite(t, at, hosts.Job{Scheduler: psjob, Servers: []hosts.Program{kv, psjob}, Workers: hosts.Repeat(2, count)})
			checkPsjobWorkers(t, r.Workers)
		})
	}
}

// TestPsjobRepeatsWhatIsLost has every node throw away what it gets, one
// message in fifty; the sums are exact all the same.
func TestPsjobRepeatsWhatIsLost(t *testing.T) {
	psjob := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}
	r := run(t, place{name: "hosts", hosts: 3}, hosts.Job{
		Scheduler: psjob, Servers: hosts.Repeat(2, psjob), Workers: hosts.Repeat(3, countWorker(psjob[0])),
		Env: []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=50", "PS_DROP_MSG=2"},
	})
	checkPsjobWorkers(t, r.Workers)
	dropped := 0
	for _, n := range slices.Concat(r.Servers, r.Workers) {
		var report struct{ Statistics struct{ Dropped int } }
		require.NoError(t, json.Unmarshal(n.Stdout.Bytes(), &report))
		dropped += report.Statistics.Dropped
	}
	if dropped == 0 {
		t.Error("no message was thrown away")
	}
}
