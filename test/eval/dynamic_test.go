package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/samples"
	"github.com/psidecar/psidecar/cmd/psjob/trace"
)

// As in DW23 Fig. 8, DPPA moves less than partitioning anew, and locality less
// than both.
func TestPruningOrder(t *testing.T) {
	e := &evaluation{}
	p := trace.Pruning{Workers: 8, Servers: 8, Pictures: samples.DrawImages(2000, 16, 1), Hidden: 16, Batch: 16, Snapshots: 12, Rounds: 2,
		Sparsity: 0.95, Epsilon: 0.01, Own: 0.8, LearningRate: 0.1, Seed: 1}
	uses, err := p.Trace(&trace.PruningReport{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.simulate(uses, p.Rounds)
	if err != nil {
		t.Fatal(err)
	}
	total := map[string]float64{}
	for _, s := range r.Results {
		total[s.Strategy] = s.Sum.Total
	}
	if !(total["locality"] < total["dppa"] && total["dppa"] < total["mgp"]) {
		t.Errorf("bytes between machines: %v", total)
	}
}

func TestDynamicWithoutData(t *testing.T) {
	var out, log bytes.Buffer
	dir := t.TempDir()
	if err := run(t.Context(), []string{"--what", "dynamic", "--quick", "--out", dir, "--datasets", dir}, &out, &log); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "pictures that are made") || strings.Count(out.String(), "strategy") != 3 {
		t.Errorf("log %q, tables\n%s", log.String(), out.String())
	}
	for _, name := range []string{"dynamic-fig8.png", "dynamic-wandering.png"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() < 10_000 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
