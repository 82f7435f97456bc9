package prerun

import (
	"fmt"
	"strings"

	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/best"
	"github.com/psidecar/psidecar/planner/partition/multilevel"
	"github.com/psidecar/psidecar/planner/partition/twostep"
)

// An Algorithm is a partitioner as users choose it. Its name also stands in placement.json and in
// reports, so it must not change.
type Algorithm struct {
	Name      string // as in --algorithm
	About     string // one line, with the source
	Partition partition.Partitioner
}

// AllAlgorithms returns the algorithms in the order of tables, the baseline first.
func AllAlgorithms() []Algorithm {
	return []Algorithm{
		{"random", "samples and parameters anywhere, the baseline (DWW21 section 6.2)", partition.Random},
		{"tsh1", "two steps, one sample at a time (DWW21 Alg. 1 with alpha = 1, and Alg. 2)", twostep.TSH1},
		{"tsh2", "two steps, up to two samples at a time (DWW21 Alg. 1 with alpha = 2, and Alg. 2)", twostep.TSH2},
		{"mbp", "multilevel, samples and parameters together (DWW21 section 5)", multilevel.MBP},
		{"dppa", "two steps, sampled, alpha chosen by the graph's size and density (DW23 Alg. 1 and 2)", twostep.DPPA},
		{"best", "multilevel annealing with prices for what presses, then owners that level the machines (ours)", best.Partition},
	}
}

// FindAlgorithm returns the algorithm of that name, or an error that lists all names.
func FindAlgorithm(name string) (Algorithm, error) {
	for _, a := range AllAlgorithms() {
		if a.Name == name {
			return a, nil
		}
	}
	return Algorithm{}, fmt.Errorf("no algorithm %q: use %s", name, strings.Join(AlgorithmNames(), ", "))
}

// AlgorithmNames returns the names of all algorithms.
func AlgorithmNames() []string {
	var names []string
	for _, a := range AllAlgorithms() {
		names = append(names, a.Name)
	}
	return names
}
