package codecs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// dense is a job whose workers, all on the first host, pull one model of servers on
// hosts of their own, and check it to the last bit.
type dense struct {
	servers, workers   int
	keys, width, steps int
	batch              int     // keys of a request
	part               float64 // of these, that each worker pulls of its own choice; 0: all
	rate               uint64
	sidecar            []string
	meanwhile          func(d *denseNet)
}

// denseNet is what runs.
type denseNet struct {
	net      *hosts.Net
	sidecars []*sidecar.Sidecar // the workers' first
	running  *hosts.Running
}

// pulled is what came of it.
type pulled struct {
	bytes  uint64 // of TCP payload from the servers' hosts to the workers'
	cpu    map[string]time.Duration
	shared shared.Counts
	steps  float64 // a second
}

func (d dense) do(t testing.TB) pulled {
	t.Helper()
	n := &denseNet{net: hoststest.New(t, hosts.Config{Hosts: 1 + d.servers, Rate: d.rate, Pairs: true})}
	all := n.net.Hosts()
	for _, h := range all {
		n.sidecars = append(n.sidecars, sidecar.Start(t, h, build(t, "cmd/psidecar"), "sidecar", append([]string{"--state-dir", t.TempDir(), "--codec", "compact"}, d.sidecar...)...))
	}
	before, err := n.net.Traffic()
	require.NoError(t, err)
	node := hosts.Program{build(t, "cmd/psjob"), "--json"}
	worker := append(node[:2:2], "--model", "dense", "--steps", strconv.Itoa(d.steps), "--count-keys", strconv.Itoa(d.keys),
		"--count-batch", strconv.Itoa(max(d.batch, 1)), "--value-length", strconv.Itoa(d.width), "--dense-part", fmt.Sprint(cmp.Or(d.part, 1)))
	n.running, err = hosts.Job{Scheduler: node, Servers: hosts.Repeat(d.servers, node), Workers: hosts.Repeat(d.workers, worker), Hosts: all[1:], WorkerHosts: all[:1]}.Start(t.Context())
	require.NoError(t, err)
	if d.meanwhile != nil {
		d.meanwhile(n)
	}
	if err := n.running.Wait(); err != nil {
		for _, node := range n.running.Nodes() {
			t.Logf("%s %d: %v: %s", node.Role, node.Index, node.Err, node.Stderr.String())
		}
		for _, s := range n.sidecars {
			t.Log(s.Log())
		}
		t.Fatal(err)
	}
	return d.result(t, n, before)
}

func (d dense) result(t testing.TB, n *denseNet, before [][]hosts.Traffic) (p pulled) {
	after := require.Value(n.net.Traffic())(t)
	for from := 1; from < len(after); from++ {
		p.bytes += after[from][0].Payload - before[from][0].Payload
	}
	p.cpu = map[string]time.Duration{}
	for _, w := range n.running.Workers {
		var report train.WorkerReport
		if err := json.Unmarshal(w.Stdout.Bytes(), &report); err != nil {
			t.Fatalf("worker %d printed %q: %v", w.Index, w.Stdout.Bytes(), err)
		}
		if want := int(cmp.Or(d.part, 1) * float64(d.keys*d.steps)); report.Checked != want {
			t.Errorf("worker %d has checked %d of %d keys", w.Index, report.Checked, want)
		}
		p.steps = report.StepsPerSecond
	}
	for _, node := range n.running.Nodes() {
		p.cpu["job"] += node.Process.CPU()
	}
	for _, s := range n.sidecars {
		state := require.Value(s.Connections(t.Context()))(t)
		if state.Shared != nil {
			p.shared.Add(*state.Shared)
		}
		s.Unguarded(t)
		s.Stop(t)
		p.cpu["sidecars"] += s.Process.CPU()
	}
	return p
}

func (p pulled) String() string {
	return fmt.Sprintf("%.2f MB to the workers' host, %.1f steps/s, %v of processor time, %+v", float64(p.bytes)/1e6, p.steps, p.cpu, p.shared)
}

// Four workers of a host that pull one model take at most 1.02 times the bytes that one
// takes, whatever the size of the keys, and each value is right to the last bit.
func TestPullsAreShared(t *testing.T) {
	for _, c := range []struct {
		name string
		dense
	}{
		{"large keys of two servers", dense{servers: 2, keys: 12, width: 1 << 18, steps: 5}},
		{"one request of small keys", dense{servers: 1, keys: 100, width: 500, batch: 100, steps: 20}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := c.dense
			d.workers = 1
			one := d.do(t)
			d.workers = 4
			four := d.do(t)
			t.Logf("one worker:   %v", one)
			t.Logf("four workers: %v", four)
			if times := float64(four.bytes) / float64(one.bytes); times > 1.02 {
				t.Errorf("four workers take %.3f times one's bytes", times)
			}
		})
	}
}

// Four workers of a host that pull other keys in each step, of which they have many in common, take
// little more than the bytes of each key once, and each value is right to the last bit.
func TestPullsAreSharedByKey(t *testing.T) {
	for _, c := range []struct {
		name string
		dense
	}{
		{"single values", dense{keys: 8000, batch: 8000, width: 1, steps: 60}},
		{"rows", dense{keys: 1200, batch: 400, width: 64, steps: 100}},
		{"small answers", dense{keys: 400, batch: 400, width: 3, steps: 120, sidecar: []string{"--share-least", "512"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := c.dense
			d.servers, d.workers, d.part = 1, 4, 0.5
			d.sidecar = []string{"--share-pulls=false"}
			apart := d.do(t)
			d.sidecar = c.sidecar
			together := d.do(t)
			t.Logf("apart: %v", apart)
			t.Logf("by key: %v", together)
			// Each key is in a worker's half in one of two cases, so 15/16 of all are in one of four.
			values := float64(4 * d.width * d.keys * d.steps)
			least, rest := 15./16*values, float64(apart.bytes)-2*values
			// A bit for each key, what each answer takes beside, and the first steps. On a busy
			// machine workers are a step apart now and then, and share less.
			answers := float64(4 * d.steps * d.keys / d.batch)
			most := 1.15*least + 2./8*float64(d.keys*d.steps) + max(rest, 0) + 64*answers
			if got := float64(together.bytes); got > most {
				t.Errorf("%.0f bytes by key, want at most %.0f; apart %d", got, most, apart.bytes)
			}
			if together.shared.ByKey == 0 || apart.shared.ByKey > 0 {
				t.Errorf("%d answers by key, apart %d", together.shared.ByKey, apart.shared.ByKey)
			}
		})
	}
}

// BenchmarkSharedPulls measures bytes and processor time of jobs whose workers pull
// models of keys of several sizes, shared and not, by turns.
func BenchmarkSharedPulls(b *testing.B) {
	for _, c := range []struct {
		name string
		dense
	}{
		{"10kB", dense{servers: 1, keys: 200, width: 2500, steps: 60}},
		{"100kB", dense{servers: 1, keys: 60, width: 25_000, steps: 30}},
		{"1MiB", dense{servers: 1, keys: 16, width: 1 << 18, steps: 20}},
		{"1MiB at 200Mbit", dense{servers: 1, keys: 16, width: 1 << 18, steps: 4, rate: 200e6}},
		{"4MB of 100MB", dense{servers: 2, keys: 25, width: 1_000_000, steps: 12}},
		{"50MB of 100MB", dense{servers: 2, keys: 100, width: 250_000, batch: 100, steps: 3}},
	} {
		for _, workers := range []int{1, 4} {
			for _, share := range []string{"true", "false", "auto"} {
				b.Run(fmt.Sprintf("%s/%d workers/%v", c.name, workers, share), func(b *testing.B) {
					d := c.dense
					d.workers, d.sidecar = workers, []string{fmt.Sprintf("--share-pulls=%v", share)}
					for b.Loop() {
						p := d.do(b)
						answers := float64(d.steps * workers * (d.keys + max(d.batch, 1) - 1) / max(d.batch, 1))
						gigabytes := float64(d.steps*workers*d.keys*d.width) * 4 / 1e9
						b.ReportMetric(float64(p.bytes)/1e6, "MB")
						b.ReportMetric(p.cpu["sidecars"].Seconds()*1e6/answers, "µs/answer")
						b.ReportMetric(p.cpu["sidecars"].Seconds()/gigabytes, "s/GB")
						b.ReportMetric(p.cpu["job"].Seconds()/gigabytes, "job-s/GB")
						b.ReportMetric(p.steps, "steps/s")
						b.Logf("%v", p)
					}
				})
			}
		}
	}
}
