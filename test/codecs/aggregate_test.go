package codecs

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/job"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/sidecar"
)

// counted is a job whose workers, all on the first host, push whole numbers for the
// same keys of one server on a host of its own, and check the sums, and after each push
// that what they pull has it.
type counted struct {
	workers, keys, width, steps int
	rate                        uint64
	sidecar, job, env           []string
}

// pushed is what came of it.
type pushed struct {
	bytes     uint64 // of TCP payload from the workers' host to the server's
	cpu       map[string]time.Duration
	aggregate aggregate.Counts
	steps     float64 // a second
}

func (p pushed) String() string {
	return fmt.Sprintf("%.2f MB to the server's host, %.1f steps/s, %v of processor time, %+v", float64(p.bytes)/1e6, p.steps, p.cpu, p.aggregate)
}

func (c counted) do(t testing.TB) (p pushed) {
	t.Helper()
	net := hoststest.New(t, hosts.Config{Hosts: 2, Rate: c.rate, Pairs: true})
	all := net.Hosts()
	var sidecars []*sidecar.Sidecar
	for _, h := range all {
		sidecars = append(sidecars, sidecar.Start(t, h, build(t, "cmd/psidecar"), "sidecar", append([]string{"--state-dir", t.TempDir()}, c.sidecar...)...))
	}
	before, err := net.Traffic()
	if err != nil {
		t.Fatal(err)
	}
	node := job.Program{build(t, "cmd/psjob"), "--json"}
	worker := append(node[:2:2], append([]string{"--model", "count", "--steps", strconv.Itoa(c.steps), "--count-keys", strconv.Itoa(c.keys),
		"--count-batch", strconv.Itoa(c.keys), "--value-length", strconv.Itoa(c.width)}, c.job...)...)
	running, err := job.Job{Scheduler: node, Servers: job.Repeat(1, node), Workers: job.Repeat(c.workers, worker), Hosts: all[1:], WorkerHosts: all[:1], Env: c.env}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
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
	after, err := net.Traffic()
	if err != nil {
		t.Fatal(err)
	}
	p.bytes = after[0][1].Payload - before[0][1].Payload
	for _, w := range running.Workers {
		var report train.WorkerReport
		if err := json.Unmarshal(w.Stdout.Bytes(), &report); err != nil {
			t.Fatalf("worker %d printed %q: %v", w.Index, w.Stdout.Bytes(), err)
		}
		if report.Checked == 0 {
			t.Errorf("worker %d has checked nothing", w.Index)
		}
		p.steps = report.StepsPerSecond
	}
	p.cpu = map[string]time.Duration{}
	for _, node := range running.Nodes() {
		p.cpu["job"] += node.Process.CPU()
	}
	for i, s := range sidecars {
		state, err := s.Connections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
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
	c := counted{workers: 1, keys: 4000, width: 25, steps: 60, sidecar: []string{"--handler", "add", "--aggregate", "host", "--aggregate-wait", "2s"}}
	one := c.do(t)
	c.workers = 4
	four := c.do(t)
	t.Logf("one worker:   %v", one)
	t.Logf("four workers: %v", four)
	if times := float64(four.bytes) / float64(one.bytes); times > 1.05 {
		t.Errorf("four workers take %.3f times one's bytes", times)
	}
	if four.aggregate.Lost > 0 {
		t.Errorf("%d pushes were lost", four.aggregate.Lost)
	}
}
