// Package partition divides a correlation graph among k machines, each a worker and a server, so
// that the busiest machine moves the fewest bytes. It has the terms that all partitioners share;
// the partitioners themselves are the packages below it.
//
//   - A [Partitioner] is a pure function from a [graph.Graph] and [Options] to an [Assignment].
//   - [Options] say what to divide among and which constraints hold; [Check] verifies them for any
//     assignment.
//   - [Measure] and [Loads] compute the traffic of any assignment, ours or somebody else's.
//   - [OwnersAtUsers] and [FlatOwners] place the parameters once the samples are placed.
//   - [ReadAssignment], [WriteAssignment] and [ReadEarlier] are the text format.
//
// The objective is DWW21's (section 3.4). With D_i the samples and P_i the parameters of machine i,
// and N(D_i) the parameters that its samples use, machine i moves in a step
//
//	|N(D_i) \ P_i| + sum over j != i of |P_i and N(D_j)|
//
// parameters: those that it pulls as a worker, and those that others pull from it as a server. A
// partitioner minimizes the largest of these.
package partition

import "github.com/psidecar/psidecar/planner/graph"

// An Assignment has the machine, 0..k-1, of each sample (as worker) and of each parameter (as
// server). Partitioners that know only part of one use -1 for the rest.
type Assignment struct {
	Samples []int32 // len n
	Params  []int32 // len m
}

// Traffic is what one training step moves if every machine uses all of its samples, in parameters
// (DWW21 section 3.4).
type Traffic struct {
	Max   int64 `json:"max"`   // the largest of PerMachine
	Total int64 `json:"total"` // remote (worker, parameter) pairs, each once
	// PerMachine counts both ends: machine i moves |N(D_i) \ P_i| parameters
	// as a worker and the sum over j != i of |P_i and N(D_j)| as a server.
	PerMachine []int64 `json:"per_machine"`
}

// Measure computes the traffic of an assignment to k machines. It looks at each edge once and keeps
// k numbers beside the result.
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
