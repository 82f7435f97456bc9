// Package interop has the tests that mix programs of different origin in one
// job: psjob, the C++ peer and, where the environment variable PSLITE_BIN
// names a folder that has them, PS-lite's own test programs. Their workers
// push whole numbers, so that every final sum is known, and check them.
package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is where a job runs.
type place struct {
	name  string
	hosts int // 0: loopback
	ipv6  bool
}

var (
	loopback = place{name: "loopback"}
	places   = []place{loopback, {name: "loopback-IPv6", ipv6: true}, {name: "hosts", hosts: 3}, {name: "hosts-IPv6", hosts: 3, ipv6: true}}
)

// run runs the job at the place, and fails the test with it.
func run(t testing.TB, at place, j hosts.Job) *hosts.Running {
	t.Helper()
	r := require.Value(try(t, at, j))(t)
	return r
}

// try runs the job at the place.
func try(t testing.TB, at place, j hosts.Job) (*hosts.Running, error) {
	t.Helper()
	if at.hosts > 0 {
		j.Hosts = hoststest.New(t, hosts.Config{Hosts: at.hosts}).Hosts()
	}
	j.IPv6 = at.ipv6
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	return j.Run(ctx)
}

// workload is what the peer's workers do.
type workload struct {
	name  string
	shift int // by which the numbers of a worker's keys lie above its predecessor's
	long  int // values a key, 0 for lens of 1 to 4
	args  []string
}

var workloads = []workload{
	{"scalar", 0, 1, []string{"--keys", "1000", "--space", "1000"}},
	{"small-ids", 300, 1, []string{"--keys", "1000"}},
	{"long", 0, 40, []string{"--keys", "500", "--space", "500"}},
	{"lens", 1500, 0, []string{"--keys", "5000", "--space", "8000", "--lens"}},
	{"pushpull", 0, 1, []string{"--keys", "1000", "--space", "1000", "--pushpull"}},
}

// worker is the peer's command line for the workload.
func (w workload) worker(peer hosts.Program, more ...string) hosts.Program {
	args := append(slices.Clone(peer), w.args...)
	args = append(args, "--shift", strconv.Itoa(w.shift))
	if w.long > 1 {
		args = append(args, "--width", strconv.Itoa(w.long))
	}
	return append(args, more...)
}

// values is how many values the key of that number has.
func (w workload) values(number int) int {
	if w.long == 0 {
		return number%4 + 1
	}
	return w.long
}

// peerWorkers reads what the peer's workers printed; their own check has made
// sure of the sums.
func peerWorkers(t testing.TB, nodes []*hosts.Node) []hoststest.PeerWorker {
	t.Helper()
	var all []hoststest.PeerWorker
	for _, n := range nodes {
		var w hoststest.PeerWorker
		if err := json.Unmarshal(n.Stdout.Bytes(), &w); err != nil {
			t.Fatalf("worker %d printed %q: %v", n.Index, n.Stdout.String(), err)
		}
		if w.Wrong != 0 || w.Pushes == 0 || w.Pulls == 0 {
			t.Errorf("worker %d: %+v", w.Rank, w)
		}
		all = append(all, w)
	}
	return all
}

// checkPeerServers compares what the servers hold at the end with all pushes:
// in each round, worker r adds (r + 1) * (i mod 7 + 1) to every value of key
// number i.
func checkPeerServers(t testing.TB, nodes []*hosts.Node, workers []hoststest.PeerWorker, load workload) {
	t.Helper()
	var got, want float64
	for _, n := range nodes {
		var s hoststest.PeerServer
		if err := json.Unmarshal(n.Stdout.Bytes(), &s); err != nil {
			t.Fatalf("server %d printed %q: %v", n.Index, n.Stdout.String(), err)
		}
		got += s.Sum
	}
	for _, w := range workers {
		for i := range w.Keys {
			number := load.shift*w.Rank + i
			want += float64(w.Pushes * (w.Rank + 1) * (number%7 + 1) * load.values(number))
		}
	}
	if got != want {
		t.Errorf("servers hold %g, workers pushed %g", got, want)
	}
}

func TestPeerAlone(t *testing.T) {
	own := hosts.Program{hoststest.BuildPeer(t)}
	for _, at := range places {
		for _, load := range workloads {
			t.Run(at.name+"/"+load.name, func(t *testing.T) {
				r := run(t, at, hosts.Job{Scheduler: own, Servers: hosts.Repeat(2, own), Workers: hosts.Repeat(3, load.worker(own))})
				checkPeerServers(t, r.Servers, peerWorkers(t, r.Workers), load)
			})
		}
	}
}

func TestPeerSaysWhatItAccessed(t *testing.T) {
	program := hoststest.BuildPeer(t)
	dir := t.TempDir()
	var workers []hosts.Program
	for i := range 2 {
		workers = append(workers, hosts.Program{program, "--keys", "10", "--shift", "5", "--lens", "--access", filepath.Join(dir, fmt.Sprint(i))})
	}
	r := run(t, loopback, hosts.Job{Scheduler: hosts.Program{program}, Servers: hosts.Repeat(1, hosts.Program{program}), Workers: workers})
	for i, w := range peerWorkers(t, r.Workers) {
		got := require.Value(hoststest.ReadAccess(filepath.Join(dir, fmt.Sprint(i))))(t)
		if len(got) != 10 {
			t.Errorf("worker %d: %d keys, want 10", i, len(got))
		}
		for key := uint64(5 * w.Rank); key < uint64(5*w.Rank+10); key++ {
			bytes := 4 * (key%4 + 1)
			want := hoststest.PeerAccess{Pushes: 4, PushBytes: 4 * bytes, Pulls: 5, PullBytes: 5 * bytes}
			if got[key] != want {
				t.Errorf("worker %d, key %d: %+v, want %+v", i, key, got[key], want)
			}
		}
	}
}

func TestPeerNamesWhatIsWrong(t *testing.T) {
	program := hoststest.BuildPeer(t)
	for name, test := range map[string]struct {
		args, env []string
		want      string
	}{
		"unknown flag":  {args: []string{"--nonsense"}, want: "--nonsense"},
		"no keys":       {args: []string{"--keys", "0"}, want: "--keys"},
		"bad role":      {env: []string{"DMLC_ROLE=king"}, want: "DMLC_ROLE"},
		"bad number":    {env: []string{"DMLC_NUM_SERVER=two"}, want: "DMLC_NUM_SERVER"},
		"resender":      {env: []string{"PS_RESEND=1"}, want: "PS_RESEND"},
		"no node host":  {env: []string{"DMLC_NODE_HOST="}, want: "DMLC_NODE_HOST"},
		"port is large": {env: []string{"PORT=65536"}, want: "PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			worker := append(hosts.Program{program}, test.args...)
			r := require.Value(hosts.Job{Scheduler: hosts.Program{program}, Servers: hosts.Repeat(1, hosts.Program{program}),
				Workers: []hosts.Program{worker}, Env: test.env}.Start(t.Context()))(t)
			if err := r.Wait(); err == nil {
				t.Fatal("no error")
			}
			w := r.Workers[0]
			if w.Cmd.ProcessState.ExitCode() != 2 && w.Cmd.ProcessState.ExitCode() != -1 {
				t.Errorf("exit code %d, want 2", w.Cmd.ProcessState.ExitCode())
			}
			var said strings.Builder
			for _, n := range r.Nodes() {
				said.Write(n.Stderr.Bytes())
			}
			if !strings.Contains(said.String(), test.want) {
				t.Errorf("it said %q, which does not name %s", said.String(), test.want)
			}
		})
	}
}
