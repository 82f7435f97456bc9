// Package partition divides a correlation graph among k machines, each a
// worker and a server, so that the busiest machine moves the fewest bytes. A
// partitioner is a pure function from a [graph.Graph] to an [Assignment];
// [Measure] judges any of them, ours or somebody else's.
package partition

import "github.com/psidecar/psidecar/planner/graph"

// An Assignment says which machine, 0..k-1, holds each sample (as worker) and
// each parameter (as server).
type Assignment struct {
	Samples []int32 // len n
	Params  []int32 // len m
}

// Traffic is what one training step moves when every machine uses all of its
// samples, in parameters (DWW21 section 3.4).
type Traffic struct {
	Max   int64 `json:"max"`   // the largest of PerMachine
	Total int64 `json:"total"` // remote (worker, parameter) pairs, each once
	// PerMachine counts both ends: machine i moves |N(D_i) \ P_i| parameters
	// as a worker and the sum over j != i of |P_i and N(D_j)| as a server.
	PerMachine []int64 `json:"per_machine"`
}

// Measure computes the traffic of an assignment to k machines.
func Measure(g *graph.Graph, a *Assignment, k int) Traffic {
	t := Traffic{PerMachine: make([]int64, k)}
	seen := make([]int32, k) // 1 + the last parameter that the machine was counted for
	for p := range g.Params() {
		owner := a.Params[p]
		for _, s := range g.SamplesOf(p) {
			worker := a.Samples[s]
			if worker == owner || seen[worker] == int32(p)+1 {
				continue
			}
			seen[worker] = int32(p) + 1
			t.PerMachine[worker]++
			t.PerMachine[owner]++
			t.Total++
		}
	}
	for _, n := range t.PerMachine {
		t.Max = max(t.Max, n)
	}
	return t
}
