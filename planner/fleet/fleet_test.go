package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

const second = int64(time.Second)

func stateOf(hosts ...*api.HostReport) *State {
	return &State{Reports: func() []*api.HostReport { return hosts }}
}

// timed returns a distribution as an agent reports it.
func timed(name string, micros ...int64) []*api.Latency {
	var l history.Latency
	for _, v := range micros {
		l.Record(v, 1)
	}
	durations, counts := l.Bars()
	return []*api.Latency{{Name: name, Micros: durations, Counts: counts}}
}

// A job on three hosts: worker2 is slow, worker3's host has been silent.
func TestPaceAndTimes(t *testing.T) {
	report := func(worker string, first, last int64, recent uint64, micros ...int64) *api.JobReport {
		return &api.JobReport{
			Job: "j:1", Recent: &api.Recent{FirstUnixNanos: first * second, LastUnixNanos: last * second, Bytes: 1000 * recent},
			Steps:    []*api.Steps{{Worker: worker, Steps: 10 * recent, Recent: recent, Timestamp: 7}},
			ByWorker: timed(worker, micros...), ByServer: timed("server0", micros...),
			Traffic:     []*api.Traffic{{Worker: worker, Server: "server0", Requests: uint64(len(micros))}},
			Connections: &api.Connections{Synced: 4, Unsynced: 1, MissedBytes: 10},
		}
	}
	s := stateOf(
		&api.HostReport{Host: "a", Jobs: []*api.JobReport{report("worker0", 100, 110, 50, 100, 200), report("worker1", 100, 110, 52, 300)}},
		&api.HostReport{Host: "b", Jobs: []*api.JobReport{report("worker2", 100, 110, 20, 400, 1000)}},
		&api.HostReport{Host: "c", Jobs: []*api.JobReport{report("worker3", 80, 90, 50, 500)}},
	)
	jobs := s.Jobs()
	if len(jobs) != 1 {
		t.Fatalf("%d jobs, want 1", len(jobs))
	}
	j := jobs[0]
	if j.StepsPerSecond != 5 || !slices.Equal(j.Stragglers, []string{"worker2", "worker3"}) {
		t.Errorf("%v steps/s, stragglers %v; want 5, workers 2 and 3", j.StepsPerSecond, j.Stragglers)
	}
	if j.Latency.Count != 6 || math.Abs(j.Latency.P50/300e-6-1) > 0.03 || math.Abs(j.Latency.Max/1000e-6-1) > 0.03 {
		t.Errorf("latency %+v, want 6 requests of 100 to 1000 microseconds", j.Latency)
	}
	if (j.Connections != page.Connections{Synced: 16, Unsynced: 4, Missed: 40}) {
		t.Errorf("connections %+v", j.Connections)
	}
	loads := require.Value(s.Servers("j:1", page.Range{}))(t)
	if len(loads.Servers) != 1 || loads.Servers[0].Latency.Count != 6 || len(loads.Workers) != 4 {
		t.Fatalf("%+v", loads)
	}
	if w := loads.Workers[3]; w.Name != "worker3" || w.StepsPerSecond != 50.0/30 || !w.Straggler || w.Timestamp != 7 || w.Latency.Count != 1 {
		t.Errorf("%+v, want 50 steps in the 30 seconds up to the job's last message", w)
	}
	for _, ask := range []func() error{
		func() error { _, err := s.Traffic("j:1", page.Range{From: time.Unix(1, 0)}); return err },
		func() error { _, err := s.Servers("j:1", page.Range{From: time.Unix(1, 0)}); return err },
		func() error {
			_, err := s.Heatmap("j:1", page.HeatmapQuery{Range: page.Range{To: time.Unix(1, 0)}})
			return err
		},
	} {
		if err := ask(); !errors.Is(err, page.ErrNoRange) {
			t.Errorf("for a stretch of time: %v", err)
		}
	}
}

func TestHosts(t *testing.T) {
	a := stateOf(
		&api.HostReport{Host: "a", Agent: &api.AgentReport{CpuPercent: 1, KernelPercent: 0.5, MemoryBytes: 10, SampledOneIn: 1,
			Lost: []*api.Loss{{Reason: "gap", Events: 1, Bytes: 5}}}},
		&api.HostReport{Host: "b", Agent: &api.AgentReport{CpuPercent: 2, MemoryBytes: 20, SampledOneIn: 4,
			Lost: []*api.Loss{{Reason: "gap", Events: 2, Bytes: 6}, {Reason: "ring_full", Events: 1}}}},
	).Agent()
	if a.CPUPercent != 3 || a.KernelPercent != 0.5 || a.MemoryBytes != 30 || a.Sampling.OneIn != 4 || len(a.Hosts) != 2 || len(a.Hosts[1].Lost) != 2 {
		t.Errorf("%+v", a)
	}
	if len(a.Counters) != 2 || a.Counters[0].Events != 3 || a.Counters[0].Bytes != 11 {
		t.Errorf("counters %+v", a.Counters)
	}
	text, err := json.Marshal(stateOf().Agent())
	if err != nil || !strings.Contains(string(text), `"hosts":[]`) {
		t.Errorf("a planner to which nobody reports: %s, %v", text, err)
	}
}

// A few names of nodes in a report make no table that takes all memory.
func TestTablesHaveABound(t *testing.T) {
	const nodes = 5000
	j := &api.JobReport{Job: "j:1"}
	for i := range nodes {
		j.Traffic = append(j.Traffic, &api.Traffic{Worker: fmt.Sprint("worker", i), Server: fmt.Sprint("server", i)})
		j.Uses = append(j.Uses, &api.Use{Worker: fmt.Sprint("worker", i)})
		j.Hottest = append(j.Hottest, &api.HotKey{Key: uint64(i), Accesses: 1, Workers: []uint64{1}})
	}
	s := stateOf(&api.HostReport{Host: "a", Jobs: []*api.JobReport{j}})
	if _, err := s.Traffic("j:1", page.Range{}); err == nil {
		t.Errorf("the traffic of %d workers with %[1]d servers is shown", nodes)
	}
	if _, err := s.Servers("j:1", page.Range{}); err == nil {
		t.Errorf("the loads of %d workers and %[1]d servers are shown", nodes)
	}
	k, err := s.Keys("j:1", nodes)
	if err != nil || len(k.Hottest)*nodes > maxCells || len(k.Hottest) == 0 || k.Hottest[0].Workers[0] != 1 {
		t.Errorf("%d keys of %d workers are shown, %v", len(k.Hottest), nodes, err)
	}
}

// The keys of a job whose number of servers nobody has seen yet have no home.
func TestKeysWithoutServers(t *testing.T) {
	s := stateOf(&api.HostReport{Host: "a", Jobs: []*api.JobReport{{Job: "j:1", Hottest: []*api.HotKey{{Key: 7, Accesses: 1}}}}})
	if k, err := s.Keys("j:1", 10); err != nil || len(k.Hottest) != 1 || k.Hottest[0].Server != "" {
		t.Errorf("%+v, %v", k, err)
	}
}

// A trial of codecs on a model that diverged can be shown.
func TestAdviceIsFinite(t *testing.T) {
	for _, x := range []float64{math.NaN(), math.Inf(1), math.SmallestNonzeroFloat64} {
		d := &api.CodecsDescription{Advice: []*api.CodecAdvice{{Job: "j:1", Seconds: x, StepSquares: x,
			Candidates: []*api.CodecCandidate{{Codec: "threshold", WaitingSquares: math.MaxFloat64}}}}}
		if _, err := json.Marshal(Codecs("j:1", d)); err != nil {
			t.Errorf("with sums of %v: %v", x, err)
		}
	}
}

// What is suggested loses nothing, or holds back little.
func TestSuggested(t *testing.T) {
	row := func(codec string, saved, waits float64) page.CodecRow {
		return page.CodecRow{Codec: codec, Saved: saved, Waits: waits}
	}
	lossy := []page.CodecRow{row("quantize 8", 0.4, 0), row("slim 0.3,0.15", 0.9, 0), row("threshold 0.99, quantize 8", 0.8, 1)}
	for name, c := range map[string]struct {
		rows []page.CodecRow
		want string
	}{
		"nothing was tried":              {nil, ""},
		"nothing saves":                  {[]page.CodecRow{row("compact", 0.05, 0), row("threshold 0.9", 0.1, 1)}, ""},
		"lossless ones do":               {[]page.CodecRow{row("compact", 0.2, 0), row("unchanged", 0.5, 0), row("threshold 0.9", 0.55, 1)}, "unchanged"},
		"the most that holds back":       {[]page.CodecRow{row("compact", 0.2, 0), row("threshold 0.9", 0.5, 0.5), row("threshold 0.98", 0.6, 2), row("threshold 0.99", 0.7, 2.1)}, "threshold 0.98"},
		"all hold back much":             {[]page.CodecRow{row("compact", 0.2, 0), row("threshold 0.75", 0.6, 3)}, "compact"},
		"values of an unknown type":      {[]page.CodecRow{row("compact", 0, 0), row("threshold 0.9", 0, 0)}, ""},
		"how much is held back: unknown": {[]page.CodecRow{row("threshold 0.9", 0.6, 0)}, ""},
	} {
		if got := suggested(append(c.rows, lossy...)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestSketch(t *testing.T) {
	exact := &api.JobReport{DistinctKeys: 5, Sketch: &api.Sketch{Exact: true, MemoryBytes: 100}}
	folded := &api.JobReport{DistinctKeys: 9, Sketch: &api.Sketch{Bound: 3, Percent: 98, MemoryBytes: 200, FoldedBlocks: 1}}
	for _, tc := range []struct {
		name    string
		reports []*api.JobReport
		want    page.Sketch
	}{
		{"one host", []*api.JobReport{exact}, page.Sketch{Job: "j", Exact: true, DistinctKeys: 5, ExactKeys: 5, MemoryBytes: 100}},
		{"two, one with a sketch", []*api.JobReport{exact, folded},
			page.Sketch{Job: "j", DistinctKeys: 9, AtLeast: true, Bound: 3, Percent: 98, MemoryBytes: 300, FoldedBlocks: 1}},
		{"two sketches", []*api.JobReport{folded, folded},
			page.Sketch{Job: "j", DistinctKeys: 9, AtLeast: true, Bound: 6, Percent: 96, MemoryBytes: 400, FoldedBlocks: 2}},
	} {
		if got := sketch("j", tc.reports); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// The skew of several hosts is nowhere above the true one and ends with all
// accesses; that of one host is the true one.
func TestSkewIsABound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		truth := map[uint64]uint64{}
		var reports []*api.JobReport
		for range rapid.IntRange(1, 4).Draw(t, "hosts") {
			used := rapid.MapOfN(rapid.Uint64Range(0, 30), rapid.Uint64Range(1, 50), 1, 20).Draw(t, "accesses")
			r := &api.JobReport{}
			for k, n := range used {
				truth[k] += n
				r.Hottest = append(r.Hottest, &api.HotKey{Key: k, Accesses: n})
			}
			slices.SortFunc(r.Hottest, func(a, b *api.HotKey) int { return int(b.GetAccesses()) - int(a.GetAccesses()) })
			var sum api.SkewPoint
			for _, k := range r.Hottest {
				sum.Keys++
				sum.Accesses += k.GetAccesses()
				r.Skew = append(r.Skew, &api.SkewPoint{Keys: sum.Keys, Accesses: sum.Accesses})
			}
			r.Hottest = r.Hottest[:min(len(r.Hottest), 5)]
			reports = append(reports, r)
		}
		var falling []uint64
		for _, n := range truth {
			falling = append(falling, n)
		}
		slices.Sort(falling)
		slices.Reverse(falling)
		within := func(n uint64) (sum uint64) {
			for _, a := range falling[:min(n, uint64(len(falling)))] {
				sum += a
			}
			return sum
		}
		curve := skew(reports, hottest(reports))
		for i, p := range curve {
			if p.Accesses > within(p.Keys) || len(reports) == 1 && p.Accesses != within(p.Keys) {
				t.Fatalf("%d hosts: %d accesses to %d keys, there were %d", len(reports), p.Accesses, p.Keys, within(p.Keys))
			}
			if i > 0 && (p.Keys <= curve[i-1].Keys || p.Accesses < curve[i-1].Accesses) {
				t.Fatalf("not rising: %v", curve)
			}
		}
		if curve[len(curve)-1].Accesses != within(math.MaxUint64) {
			t.Fatalf("ends with %v, there were %d accesses", curve[len(curve)-1], within(math.MaxUint64))
		}
	})
}

// A node is as its own host knows it, whoever reports first; its host and pod
// are named.
func TestNodes(t *testing.T) {
	node := func(name, role string, rank int32, local bool, pod *api.Pod) *api.Node {
		return &api.Node{Name: name, Role: role, Rank: rank, Address: name + ":1", Local: local, Pod: pod}
	}
	train := &api.Pod{Namespace: "train", Name: "worker-0", Node: "node-b"}
	s := stateOf(
		&api.HostReport{Host: "a", Machine: &api.Machine{LinkMbit: 25000, LinkSource: "node annotation", Cores: 8}, Jobs: []*api.JobReport{{Job: "j:1", Nodes: []*api.Node{
			node("server0", "server", 0, true, nil), node("worker0", "worker", 0, false, nil)}}}},
		&api.HostReport{Host: "b", Jobs: []*api.JobReport{{Job: "j:1", Nodes: []*api.Node{
			node("server0", "server", 0, false, nil), node("worker0", "worker", 0, true, train)}}}},
	)
	nodes := s.Jobs()[0].Nodes
	if len(nodes) != 2 || nodes[0].Host != "a" || nodes[0].PodName != nil || nodes[1].Host != "b" ||
		nodes[1].PodName == nil || *nodes[1].PodName != (page.Pod{Namespace: "train", Name: "worker-0", Node: "node-b"}) {
		t.Errorf("%+v", nodes)
	}
	hosts := s.Agent().Hosts
	if hosts[1].Machine != nil || hosts[0].Machine == nil || *hosts[0].Machine != (page.Machine{LinkMbit: 25000, LinkSource: "node annotation", Cores: 8}) {
		t.Errorf("%+v", hosts)
	}
}
