package codecs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// counted is a job whose workers, all on the first host, push whole numbers for the
// same keys of one server on a host of its own, or for batches of them that differ, and check
// the sums, and after each push that what they pull has it.
type counted struct {
	workers, keys, width, steps int
	batch                       int // keys of a push; 0: all
	rate                        uint64
	sidecar, job                []string
	late                        bool // pushes may come late: the workers check nothing

	ready  func(all []*sidecar.Sidecar)                         // before the job; nil: nothing
	beside func(all []*sidecar.Sidecar, running *hosts.Running) // while it runs; nil: nothing
}

// pushed is what came of it.
type pushed struct {
	bytes     uint64 // of TCP payload from the workers' host to the server's
	cpu       map[string]time.Duration
	aggregate aggregate.Counts
	digest    string  // of the server's sums
	steps     float64 // a second
}

func (p pushed) String() string {
	return fmt.Sprintf("%.2f MB to the server's host, %.1f steps/s, %v of processor time, %+v", float64(p.bytes)/1e6, p.steps, p.cpu, p.aggregate)
}

// on returns the job, on two hosts.
func (c counted) on(t testing.TB, all []*hosts.Host) hosts.Job {
	node := hosts.Program{build(t, "cmd/psjob"), "--json"}
	worker := append(node[:2:2], append([]string{"--model", "count", "--steps", strconv.Itoa(c.steps), "--count-keys", strconv.Itoa(c.keys),
		"--count-batch", strconv.Itoa(cmp.Or(c.batch, c.keys)), "--value-length", strconv.Itoa(c.width)}, c.job...)...)
	return hosts.Job{Scheduler: node, Servers: hosts.Repeat(1, node), Workers: hosts.Repeat(c.workers, worker), Hosts: all[1:], WorkerHosts: all[:1]}
}

func (c counted) do(t testing.TB) (p pushed) {
	t.Helper()
	net := hoststest.New(t, hosts.Config{Hosts: 2, Rate: c.rate, Pairs: true})
	all := net.Hosts()
	var sidecars []*sidecar.Sidecar
	for _, h := range all {
		sidecars = append(sidecars, sidecar.Start(t, h, build(t, "cmd/psidecar"), "sidecar", append([]string{"--state-dir", t.TempDir(), "--codec", "compact"}, c.sidecar...)...))
	}
	if c.ready != nil {
		c.ready(sidecars)
	}
	before := require.Value(net.Traffic())(t)
	running := require.Value(c.on(t, all).Start(t.Context()))(t)
	if c.beside != nil {
		c.beside(sidecars, running)
	}
	if err := running.Wait(); err != nil {
		for _, node := range running.Nodes() {
			t.Logf("%s %d: %v: %s", node.Role, node.Index, node.Err, node.Stderr.String())
		}
		for _, s := range sidecars {
			t.Log(s.Log())
		}
		t.Fatal(err)
	}
	after := require.Value(net.Traffic())(t)
	p.bytes = after[0][1].Payload - before[0][1].Payload
	for _, w := range running.Workers {
		var report train.WorkerReport
		if err := json.Unmarshal(w.Stdout.Bytes(), &report); err != nil {
			t.Fatalf("worker %d printed %q: %v", w.Index, w.Stdout.Bytes(), err)
		}
		if report.Checked == 0 && !c.late {
			t.Errorf("worker %d has checked nothing", w.Index)
		}
		p.steps = report.StepsPerSecond
	}
	var report train.ServerReport
	if err := json.Unmarshal(running.Servers[0].Stdout.Bytes(), &report); err != nil {
		t.Fatalf("the server printed %q: %v", running.Servers[0].Stdout.Bytes(), err)
	}
	p.digest, p.cpu = report.Digest, map[string]time.Duration{}
	for _, node := range running.Nodes() {
		p.cpu["job"] += node.Process.CPU()
	}
	for i, s := range sidecars {
		state := require.Value(s.Connections(t.Context()))(t)
		if i == 0 && state.Aggregate != nil {
			p.aggregate = *state.Aggregate
		}
		s.Unguarded(t)
		s.Stop(t)
		p.cpu["sidecars"] += s.Process.CPU()
	}
	return p
}

// Four workers of a host that push the same keys, and wait for each other a moment, take
// hardly more bytes than one, and every sum is right.
func TestPushesAreSummed(t *testing.T) {
	summed := []string{"--handler", "add", "--aggregate", "host", "--aggregate-wait", "2s"}
	for _, c := range []struct {
		name string
		counted
	}{
		{"values of one length", counted{keys: 6000, width: 10, steps: 60, sidecar: summed, job: []string{"--count-most", "50000"}}},
		{"lens", counted{keys: 6000, width: 1, steps: 60, sidecar: summed, job: []string{"--count-most", "50000", "--count-lens"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := c.counted
			n.workers = 1
			one := n.do(t)
			n.workers = 4
			four := n.do(t)
			t.Logf("one worker:   %v", one)
			t.Logf("four workers: %v", four)
			// Each worker's first push, and those before the server's first answer, go alone.
			if times := float64(four.bytes) / float64(one.bytes); times > 1.05+6/float64(n.steps) {
				t.Errorf("four workers take %.3f times one's bytes", times)
			}
			if a := four.aggregate; a.Lost > 0 || a.Carried < uint64(3*(n.steps-3)) {
				t.Errorf("%+v", a)
			}
		})
	}
}

// common returns how many bytes of values several workers push for the same keys in a step, over
// all steps, apart from once each: what sums can spare at most.
func (c counted) common(t testing.TB) (bytes uint64) {
	t.Helper()
	of := require.Value(train.CountKeys(train.CountOptions{Keys: c.keys, Batch: c.batch, Skew: 1}, 1, &dataset.KeyMap{}))(t)
	for step := range c.steps {
		pushed := map[uint64]bool{}
		for rank := range c.workers {
			for _, key := range of(rank, step) {
				if pushed[key] {
					bytes += uint64(4 * c.width)
				}
				pushed[key] = true
			}
		}
	}
	return bytes
}

// Four workers of a host that push other keys at every step send the values of each key once a
// step: what is spared is what they have in common, and every sum is right.
func TestPushesOfDifferingKeysAreSummed(t *testing.T) {
	c := counted{workers: 4, keys: 6000, batch: 3000, width: 10, steps: 60, job: []string{"--count-most", "50000"}}
	c.sidecar = []string{"--handler", "add"}
	plain := c.do(t)
	c.sidecar = []string{"--handler", "add", "--aggregate", "host", "--aggregate-wait", "2s"}
	summed := c.do(t)
	common := c.common(t)
	t.Logf("one by one: %v", plain)
	t.Logf("summed:     %v; in common are %d bytes", summed, common)
	a := summed.aggregate
	// In the first steps most keys are new to their workers. Of those that two workers alone have
	// in common, the last pairs of a step may have too few.
	if a.SparedBytes < common*8/10 || a.SparedBytes > common || a.Partial == 0 || a.Lost > 0 {
		t.Errorf("%+v, want about %d bytes spared", a, common)
	}
	// The zeros of the others take a bit for each word or less, and values a fifth less than they are.
	if summed.bytes+a.SparedBytes*6/10 > plain.bytes {
		t.Errorf("%d instead of %d bytes, although %d bytes of values are spared", summed.bytes, plain.bytes, a.SparedBytes)
	}
}

// Where links are slow, pushes that come while others are on their way are summed
// without waiting for anybody. The workers begin their steps together: otherwise they may come to
// queue for the answers to pulls, which take as long, and their pushes no longer meet.
func TestPushesAreSummedMeanwhile(t *testing.T) {
	c := counted{workers: 4, keys: 6000, width: 40, steps: 30, rate: 100e6, job: []string{"--count-most", "50000"}}
	c.sidecar = []string{"--handler", "add"}
	plain := c.do(t)
	c.sidecar = []string{"--handler", "add", "--aggregate", "host"}
	summed := c.do(t)
	t.Logf("one by one: %v", plain)
	t.Logf("summed:     %v", summed)
	if a := summed.aggregate; a.Carried == 0 || a.Lost > 0 || summed.bytes+a.SparedBytes/2 > plain.bytes {
		t.Errorf("%d instead of %d bytes, %+v", summed.bytes, plain.bytes, a)
	}
}

// What a threshold holds back of sums is the carrier's: the server ends with the very
// sums that it has without a sidecar.
func TestSumsAreThresholded(t *testing.T) {
	c := counted{workers: 4, keys: 6000, width: 3, steps: 40, job: []string{"--count-most", "5000", "--count-late"}, late: true}
	want := c.do(t)
	c.sidecar = []string{"--handler", "add", "--aggregate", "host", "--aggregate-wait", "2s", "--threshold", "0.9"}
	got := c.do(t)
	t.Logf("%v", got)
	if got.digest != want.digest || got.aggregate.Carried == 0 {
		t.Errorf("the server's digest is %s, want %s; %+v", got.digest, want.digest, got.aggregate)
	}
	if got.bytes > want.bytes/4 {
		t.Errorf("%d instead of %d bytes: thresholds and sums together take less", got.bytes, want.bytes)
	}
}

// BenchmarkSummedPushes measures bytes and processor time of jobs whose workers push the
// same keys, summed and not, by turns.
func BenchmarkSummedPushes(b *testing.B) {
	for _, c := range []struct {
		name string
		counted
	}{
		{"16kB", counted{keys: 4000, width: 1, steps: 100, job: []string{"--count-most", "30000"}}},
		{"240kB", counted{keys: 6000, width: 10, steps: 60, job: []string{"--count-most", "50000"}}},
		{"4MB", counted{keys: 4000, width: 250, steps: 20, job: []string{"--count-most", "30000"}}},
	} {
		for _, how := range [][]string{{"none"}, {"host"}, {"host", "--aggregate-wait", "100ms"}} {
			b.Run(c.name+"/"+strings.Join(how, ""), func(b *testing.B) {
				n := c.counted
				n.workers = 4
				n.sidecar = append([]string{"--handler", "add", "--aggregate"}, how...)
				for b.Loop() {
					p := n.do(b)
					pushes := float64(n.steps * n.workers)
					b.ReportMetric(float64(p.bytes)/1e6, "MB")
					b.ReportMetric(p.cpu["sidecars"].Seconds()*1e6/pushes, "µs/push")
					b.ReportMetric(p.steps, "steps/s")
					b.Logf("%v", p)
				}
			})
		}
	}
}
