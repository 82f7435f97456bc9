package main

import (
	"math"
	"strconv"
	"testing"
)

// TestSpeedups: Parallax comes out as in figure 9, which the cost of a byte is from; one
// machine has all of its workers' throughput; dense models are faster by AllReduce than by
// servers, LM the other way.
func TestSpeedups(t *testing.T) {
	for _, m := range scaledModels() {
		with := m.speedups(hosts)
		if math.Abs(with[byBoth]-m.parallax) > 1e-9 {
			t.Errorf("%s: %v times one GPU by both, want %v", m.name, with[byBoth], m.parallax)
		}
		for i, s := range m.speedups(1) {
			if s != hostWorkers {
				t.Errorf("%s, %s: %v times one GPU by one machine", m.name, architectures[i], s)
			}
		}
		if faster := with[byServers] > with[byAllReduce]; m.name != "NMT" && faster != (m.name == "LM") {
			t.Errorf("%s: servers are faster than AllReduce: %v", m.name, faster)
		}
	}
}

// TestByAlpha: the sparser the model, the more is gained where workers use the same.
func TestByAlpha(t *testing.T) {
	before := 0.0
	for _, row := range byAlpha().rows {
		gain, err := strconv.ParseFloat(row[1], 64)
		if err != nil || gain < before {
			t.Errorf("alpha %s: %v, %v before: %v", row[0], gain, before, err)
		}
		before = gain
	}
}
