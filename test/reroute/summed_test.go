package reroute

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/test/acting"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// sums returns what a proxy has summed so far.
func sums(t testing.TB, s *sidecar.Sidecar) aggregate.Counts {
	t.Helper()
	c := require.Value(s.Connections(t.Context()))(t)
	if c.Aggregate == nil {
		t.Fatalf("%s sums nothing", s.Host.Name)
	}
	return *c.Aggregate
}

// The pushes of a host's workers are summed while their keys move from server to server, and while
// large values are in parts on all servers. Requests are split then, and their parts summed. Each
// worker checks what it pulls, and the sums are right.
func TestSummedWhileKeysMove(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	const servers, workers = 3, 4
	n := hoststest.New(t, hosts.Config{Hosts: 1 + servers, Rate: 500_000_000})
	p := acting.NewPlanner(t, n.Host(0))
	var all []*sidecar.Sidecar
	for _, h := range n.Hosts() {
		all = append(all, sidecar.Start(t, h, program, "sidecar", "--act", "--handler", "add", "--aggregate", "host", "--aggregate-wait", "50ms", "--codec", "compact", "--split", "3",
			"--planner", p.Address, "--state-dir", t.TempDir()))
	}
	for _, c := range []struct {
		name   string
		args   []string
		ids    int
		server []string
		parts  bool
	}{
		{"equal lists", []string{"--count-keys", "1200", "--count-batch", "1200", "--value-length", "32"}, 1200, []string{"--value-length", "32"}, false},
		{"differing lists", []string{"--count-keys", "1200", "--count-batch", "600", "--value-length", "32"}, 1200, []string{"--value-length", "32"}, false},
		{"large values in parts", []string{"--key-map", "identity", "--count-keys", "3", "--count-batch", "3", "--value-length", "262144"}, 3, []string{"--value-length", "262144"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			goesOn, end := hoststest.WhileTraining(t)
			mine := hosts.Program{psjob, "--json"}
			count := append(append(mine[:2:2], "--model", "count", "--steps", "40", "--count-while", goesOn), c.args...)
			name := acting.JobName(n.Host(1).IPv4)
			var before plan.Run
			for _, j := range runStates(t, all, name, "") {
				before = j.Run
			}
			had := sums(t, all[0])
			r := require.Value(hosts.Job{Scheduler: mine, Servers: hosts.Repeat(servers, append(mine[:2:2], c.server...)), Workers: hosts.Repeat(workers, count),
				Hosts: n.Hosts()[1:], WorkerHosts: n.Hosts()[:1]}.Start(ctx))(t)
			rng := rand.New(rand.NewPCG(1, 1))
			var requests, split, moved uint64
			var now aggregate.Counts
			untilOver(t, r, 50*time.Millisecond, func(over bool) {
				requests, split, moved = 0, 0, 0
				for _, j := range runStates(t, all, name, before) {
					requests, split, moved = requests+j.Plain+j.Split, split+j.Split, moved+j.Moved
				}
				now = sums(t, all[0])
				if split > 200 && (moved >= 400 || c.parts) && now.Sums >= had.Sums+100 {
					end()
				}
				if !over && !c.parts && requests > 20 && !p.Busy(name) {
					p.Propose(rng, name, hoststest.JobKeys(t, c.ids), 200, servers)
				}
			})
			t.Logf("%d requests, %d of them split, %d keys moved: %+v", requests, split, moved, now)
			if now.Sums < had.Sums+100 || now.Carried+now.Partial == had.Carried+had.Partial || now.Lost > 0 {
				t.Errorf("of %d requests, %d of them split: %+v; before: %+v", requests, split, now, had)
			}
		})
	}
	for _, s := range all {
		s.Unguarded(t)
		s.Stop(t)
	}
}

// With --allow-probe pushes are summed once a test has shown that the servers add, and those to
// servers that do something else are left alone, with the reason.
func TestSummedWhereAProbeShowsThatServersAdd(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	p := acting.NewPlanner(t, n.Host(0))
	var all []*sidecar.Sidecar
	for _, h := range n.Hosts() {
		all = append(all, sidecar.Start(t, h, program, "sidecar", "--act", "--allow-probe", "--aggregate", "host", "--aggregate-wait", "20ms", "--codec", "compact",
			"--planner", p.Address, "--state-dir", t.TempDir()))
	}
	samples := writeSamples(t, 8000)
	for _, c := range []struct {
		rule string
		adds bool
	}{{"add", true}, {"ftrl", false}} {
		t.Run(c.rule, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			had := sums(t, all[0])
			mine := hosts.Program{psjob, "--json", "--model", "lr", "--data", samples, "--epochs", "100000", "--batch", "50", "--rule", c.rule}
			r, err := hosts.Job{Hosts: n.Hosts()[1:], Scheduler: mine, Servers: hosts.Repeat(1, mine), Workers: hosts.Repeat(3, mine), WorkerHosts: n.Hosts()[:1]}.Start(ctx)
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() { done <- r.Wait(); close(done) }()
			defer func() { cancel(); <-done }() // it trains until it is stopped
			until(t, done, "pushes are summed, or left alone because of the handler", func() bool {
				now := sums(t, all[0])
				summed, left := now.Sums-had.Sums, now.Passed[aggregate.Handler]-had.Passed[aggregate.Handler]
				if !c.adds && summed > 0 {
					t.Fatalf("pushes to servers with %s were summed: %+v", c.rule, now)
				}
				return c.adds && summed > 20 || !c.adds && left > 200
			})
			t.Logf("%+v", sums(t, all[0]))
		})
	}
}

// BenchmarkSplitPushesSummed measures bytes and processor time of a job whose workers, on one host,
// push the same keys, where these are at home and where they are on any of three servers, summed and
// not.
func BenchmarkSplitPushesSummed(b *testing.B) {
	require.Root(b)
	require.BPF(b)
	program, psjob := hoststest.BuildJob(b, "cmd/psidecar"), hoststest.BuildJob(b, "cmd/psjob")
	const servers, workers, ids, steps = 3, 4, 6000, 60
	for _, where := range []string{"home", "scattered"} {
		for _, how := range [][]string{{"none"}, {"host", "--aggregate-wait", "100ms"}} {
			b.Run(where+"/"+how[0], func(b *testing.B) {
				n := hoststest.New(b, hosts.Config{Hosts: 1 + servers, Pairs: true})
				args := append([]string{"sidecar", "--handler", "add", "--codec", "compact", "--aggregate"}, how...)
				if where != "home" {
					args = append(args, "--placement", scatter(b, ids, servers))
				}
				var all []*sidecar.Sidecar
				for _, h := range n.Hosts() {
					all = append(all, sidecar.Start(b, h, program, args[0], append(args[1:len(args):len(args)], "--state-dir", b.TempDir())...))
				}
				mine := hosts.Program{psjob, "--json"}
				count := append(mine[:2:2], "--model", "count", "--count-keys", strconv.Itoa(ids), "--count-batch", strconv.Itoa(ids), "--value-length", "10", "--count-most", "50000", "--steps", strconv.Itoa(steps))
				for b.Loop() {
					r, err := hosts.Job{Scheduler: mine, Servers: hosts.Repeat(servers, mine), Workers: hosts.Repeat(workers, count), Hosts: n.Hosts()[1:], WorkerHosts: n.Hosts()[:1]}.Start(b.Context())
					if err == nil {
						err = r.Wait()
					}
					require.NoError(b, err)
				}
				traffic := require.Value(n.Traffic())(b)
				bytes, took := uint64(0), time.Duration(0)
				for to := range servers {
					bytes += traffic[0][1+to].Payload
				}
				if how[0] != "none" {
					b.Logf("%+v", sums(b, all[0]))
				}
				for _, s := range all {
					s.Unguarded(b)
					s.Stop(b)
					took += s.Process.CPU()
				}
				pushes := float64(b.N * workers * steps)
				b.ReportMetric(float64(bytes)/float64(b.N)/1e6, "MB")
				b.ReportMetric(float64(took.Microseconds())/pushes, "µs/push")
			})
		}
	}
}
