package page

import "fmt"

// fleet is a State of one job with many workers, whose counts follow from the
// worker's number and the key, at any zoom.
type fleet struct{ workers, servers int }

const fleetJob = "198.18.0.1:9000"

func (f fleet) names(role string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", role, i)
	}
	return names
}

func (f fleet) Jobs() []Job {
	return []Job{{
		Name: fleetJob, Dialect: "dmlc", Servers: f.servers, Workers: f.workers, Accesses: 1 << 30, DistinctKeys: 5e6,
		Bytes: 3 << 30, LeftHostBytes: 2 << 30, StepsPerSecond: 12.5, BytesPerSecond: 3e8, SampledOneIn: 1,
		Exact: true, Latency: Latency{Count: 100, P50: 0.0004, P99: 0.0031}, Connections: Connections{Synced: 16},
	}}
}

func (f fleet) Heatmap(job string, q HeatmapQuery) (Heatmap, error) {
	h := Heatmap{Job: job, Workers: f.names("worker", f.workers), Measure: q.Measure, Exact: true, SampledOneIn: 1}
	width := uint64(q.Last-q.First)/uint64(q.Blocks) + 1
	for b := range uint64(q.Blocks) {
		first := uint64(q.First) + b*width
		h.Blocks = append(h.Blocks, NewBlock(first, min(first+width-1, uint64(q.Last)), 1000, false))
	}
	for w := range f.workers {
		row := make([]uint64, q.Blocks)
		for b := range row {
			row[b] = f.count(w, h.Blocks[b].First)
		}
		h.Counts = append(h.Counts, row)
	}
	return h, nil
}

// count has a hot stripe for every worker and a slope over the keys.
func (f fleet) count(worker int, key Key) uint64 {
	stripe := uint64(worker) * (1 << 63 / uint64(f.workers) * 2)
	distance := max(uint64(key), stripe) - min(uint64(key), stripe)
	return 1_000_000_000/(1+distance>>52) + uint64(key)>>60
}

func (f fleet) Traffic(job string, r Range) (Traffic, error) {
	t := Traffic{Job: job, Workers: f.names("worker", f.workers), Servers: f.names("server", f.servers), Range: r}
	for w := range f.workers {
		row := make([]uint64, f.servers)
		for s := range row {
			row[s] = uint64((w + 1) * (s + 1) * 1000)
		}
		t.ToServers, t.ToWorkers, t.Requests = append(t.ToServers, row), append(t.ToWorkers, row), append(t.Requests, row)
	}
	return t, nil
}

func (f fleet) Keys(job string, n int) (Keys, error) {
	k := Keys{Job: job, Sketch: Sketch{Exact: true, DistinctKeys: 5e6, ExactKeys: 5e6, MemoryBytes: 90 << 20}}
	for i := range n {
		key := Key(1)<<63 + Key(i)
		k.Hottest = append(k.Hottest, HotKey{Key: key, Text: key.Text(), Accesses: uint64(1e6 / (i + 1)), Server: "server-0"})
	}
	for i := uint64(1); i <= 5_000_000; i *= 2 {
		k.Skew = append(k.Skew, SkewPoint{Keys: i, Accesses: i * 100 / (1 + i/5000)})
	}
	return k, nil
}

func (f fleet) Servers(job string, _ Range) (Servers, error) {
	s := Servers{Job: job}
	for i, name := range f.names("server", f.servers) {
		s.Servers = append(s.Servers, ServerLoad{Name: name, Requests: 1000, BytesIn: 5e8, Share: float64(i+1) / float64(f.servers*(f.servers+1)/2), Latency: Latency{Count: 1000, P50: 0.0003, P99: 0.002}})
	}
	for i, name := range f.names("worker", min(f.workers, 8)) {
		s.Workers = append(s.Workers, WorkerLoad{Name: name, Requests: 1000, StepsPerSecond: 12.5, Straggler: i == 3})
	}
	return s, nil
}

func (f fleet) Agent() Agent {
	return Agent{
		Version: "test", Host: "host-0", CPUPercent: 1.3, KernelPercent: 0.4, MemoryBytes: 120 << 20,
		Programs: []Program{{Name: "egress", Runs: 123456, Seconds: 0.04, NanosPerRun: 324}},
		Sampling: Sampling{OneIn: 4, Window: 8, Adaptive: true, BudgetPercent: 5},
		Counters: []Counter{{Reason: "ring_full", Class: "lost", Help: "the ring buffer was full", Events: 2, Bytes: 640}},
	}
}

func (f fleet) Ready() error { return nil }
