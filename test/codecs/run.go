// Package codecs runs training jobs across hosts whose sidecars change values,
// end to end: psjob on hosts with links of a chosen speed, psidecar up on each,
// and what the job says of itself beside what the links carried and the proxies
// counted. In comes a [Run], out goes an [Outcome]; the tests here and
// `make eval-codecs` call it.
package codecs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// Run is one job on hosts of its own: on each a server, a worker and, unless
// Direct, a sidecar.
type Run struct {
	Hosts   int
	Workers int    // 0: one a host
	Apart   bool   // the scheduler has a host of its own, without a sidecar
	Rate    uint64 // of each link, bits a second; 0: as fast as the machine
	Direct  bool
	Sidecar []string // flags
	// Planned has all sidecars follow the planner of the first, rather than each
	// its own.
	Planned bool
	Job     []string // flags of psjob
	Env     []string
	// Started is called once the job runs.
	Started func(sidecars []*sidecar.Sidecar, running *hosts.Running)
}

// Outcome is what came of a Run.
type Outcome struct {
	Workers []train.WorkerReport
	Servers []train.ServerReport // by rank
	// Bytes of TCP payload that left a host, all hosts together, from before
	// the job's start to its end, and of each host those that it sent and
	// received.
	Bytes uint64
	Hosts []uint64
	// CPU is the processor time that workers, servers and sidecars took, from
	// start to end.
	CPU map[string]time.Duration
	// Forms and Reasons are the sums of all proxies' counts.
	Forms   map[string]values.FormCount
	Reasons map[values.Reason]uint64
}

// StepsPerSecond is the mean of the workers.
func (o *Outcome) StepsPerSecond() float64 {
	sum := 0.0
	for _, w := range o.Workers {
		sum += w.StepsPerSecond
	}
	return sum / float64(len(o.Workers))
}

// First returns the report of the worker of rank 0, which scores the test data.
func (o *Outcome) First() train.WorkerReport {
	for _, w := range o.Workers {
		if w.Rank == 0 {
			return w
		}
	}
	return train.WorkerReport{}
}

var programs struct {
	sync.Mutex // guards paths
	paths      map[string]string
}

// build builds a program once for all tests.
func build(t testing.TB, name string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if p := programs.paths[name]; p != "" {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	p := hoststest.BuildJob(t, name)
	if programs.paths == nil {
		programs.paths = map[string]string{}
	}
	programs.paths[name] = p
	return p
}

// Do makes the hosts, runs the job and ends everything. The test fails where
// the job does.
func (r Run) Do(t testing.TB) *Outcome {
	t.Helper()
	config := hosts.Config{Hosts: r.Hosts, Rate: r.Rate, Pairs: true}
	if r.Apart {
		config.Hosts++
	}
	net := hoststest.New(t, config)
	all, apart := net.Hosts()[:r.Hosts], (*hosts.Host)(nil)
	if r.Apart {
		apart = net.Host(r.Hosts)
	}
	var sidecars []*sidecar.Sidecar
	if !r.Direct {
		for i, h := range all {
			flags := append([]string{"--state-dir", t.TempDir()}, r.Sidecar...)
			if r.Planned && i > 0 {
				flags = append(flags, "--planner", sidecars[0].Address(sidecar.Planner))
			}
			sidecars = append(sidecars, sidecar.Start(t, h, build(t, "cmd/psidecar"), "sidecar", flags...))
		}
	}
	before := require.Value(net.Traffic())(t)
	psjob := append(hosts.Program{build(t, "cmd/psjob"), "--json"}, r.Job...)
	workers := cmp.Or(r.Workers, r.Hosts)
	running := require.Value(hosts.Job{
		Scheduler: psjob, Servers: hosts.Repeat(r.Hosts, psjob), Workers: hosts.Repeat(workers, psjob), Hosts: all, Apart: apart, Env: r.Env,
	}.Start(t.Context()))(t)
	if r.Started != nil {
		r.Started(sidecars, running)
	}
	require.NoError(t, running.Wait())
	after := require.Value(net.Traffic())(t)
	o := &Outcome{Hosts: make([]uint64, len(after)), CPU: map[string]time.Duration{}, Forms: map[string]values.FormCount{}, Reasons: map[values.Reason]uint64{}}
	for from := range after {
		for to := range after[from] {
			bytes := after[from][to].Payload - before[from][to].Payload
			o.Bytes += bytes
			o.Hosts[from] += bytes
			o.Hosts[to] += bytes
		}
	}
	for _, n := range running.Nodes() {
		o.CPU[n.Role+"s"] += n.Process.CPU()
	}
	for _, w := range running.Workers {
		var report train.WorkerReport
		if err := json.Unmarshal(w.Stdout.Bytes(), &report); err != nil {
			t.Fatalf("worker %d printed %q instead of its report: %v", w.Index, w.Stdout.Bytes(), err)
		}
		o.Workers = append(o.Workers, report)
	}
	for _, s := range running.Servers {
		var report train.ServerReport
		if err := json.Unmarshal(s.Stdout.Bytes(), &report); err != nil {
			t.Fatalf("server %d printed %q instead of its report: %v", s.Index, s.Stdout.Bytes(), err)
		}
		o.Servers = append(o.Servers, report)
	}
	slices.SortFunc(o.Servers, func(a, b train.ServerReport) int { return a.Rank - b.Rank })
	for _, s := range sidecars {
		state := require.Value(s.Connections(t.Context()))(t)
		if state.Values != nil {
			o.count(state.Values.Counts)
		}
		s.Unguarded(t)
		s.Stop(t)
		o.CPU["sidecars"] += s.Process.CPU()
	}
	return o
}

func (o *Outcome) count(c values.Counts) {
	for _, f := range c.Forms {
		sum := o.Forms[f.Form]
		sum.Form = f.Form
		sum.Layers += f.Layers
		sum.Values += f.Values
		sum.Sent += f.Sent
		sum.Bytes += f.Bytes
		sum.Encoded += f.Encoded
		o.Forms[f.Form] = sum
	}
	for r, n := range c.Reasons {
		o.Reasons[r] += n
	}
}

// digests are those of the servers' sums.
func (o *Outcome) digests() (all []string) {
	for _, s := range o.Servers {
		all = append(all, s.Digest)
	}
	return all
}

// ratio says how much smaller the values became that went by these forms.
func (o *Outcome) ratio(forms ...string) string {
	var plain, encoded uint64
	for _, f := range forms {
		plain += o.Forms[f].Bytes
		encoded += o.Forms[f].Encoded
	}
	if encoded == 0 {
		return "-"
	}
	return fmt.Sprintf("1/%.1f", float64(plain)/float64(encoded))
}

// String is for logs.
func (o *Outcome) String() string {
	var b strings.Builder
	w := o.First()
	fmt.Fprintf(&b, "%.1f steps/s, %d bytes over the links", o.StepsPerSecond(), o.Bytes)
	for _, v := range []struct {
		name string
		v    *float64
	}{{"loss", w.Loss}, {"test loss", w.TestLoss}, {"accuracy", w.Accuracy}, {"test accuracy", w.TestAccuracy}} {
		if v.v != nil {
			fmt.Fprintf(&b, ", %s %.4f", v.name, *v.v)
		}
	}
	for _, role := range []string{"workers", "servers", "sidecars"} {
		fmt.Fprintf(&b, ", %s %.1f s of a processor", role, o.CPU[role].Seconds())
	}
	for _, f := range o.Forms {
		fmt.Fprintf(&b, "; %s: %d of %d values, %d bytes as %d (1/%.1f)", f.Form, f.Sent, f.Values, f.Bytes, f.Encoded, float64(f.Bytes)/float64(max(1, f.Encoded)))
	}
	for r, n := range o.Reasons {
		fmt.Fprintf(&b, "; %s %d", r, n)
	}
	return b.String()
}
