package prerun

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
)

// Rules are the weights of single parameters and samples.
type Rules struct {
	features map[uint64]uint32
	// By sample, from 0.
	samples map[int]uint32
	// By sample, the line of its rule, for errors that are found only when the data is known.
	lines map[int]int
	name  string
}

// ReadRules parses a text with lines such as
//
//	feature 17 bytes=256
//	sample 3 weight=2
//
// A feature is named by its id, a sample by its position in the data, counted from 1. Comments start
// with #. name is used in errors, which are [dataset.LineError].
func ReadRules(r io.Reader, name string) (*Rules, error) {
	rules := &Rules{features: map[uint64]uint32{}, samples: map[int]uint32{}, lines: map[int]int{}, name: name}
	lines := bufio.NewScanner(r)
	for line := 1; lines.Scan(); line++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		if err := rules.addRule(words, line); err != nil {
			return nil, &dataset.LineError{File: name, Line: line, Err: err}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the rules %s: %w", name, err)
	}
	return rules, nil
}

// addRule parses one line.
func (rules *Rules) addRule(words []string, line int) error {
	if len(words) != 3 || words[0] != "feature" && words[0] != "sample" {
		return fmt.Errorf("want \"feature ID bytes=N\" or \"sample NUMBER weight=N\", got %q", strings.Join(words, " "))
	}
	id, err := strconv.ParseUint(words[1], 10, 64)
	isSample := words[0] == "sample"
	if err != nil || id > dataset.MaxID || isSample && (id == 0 || id > math.MaxInt32) {
		return fmt.Errorf("%s %q: want a feature id up to 2^63, or a sample's place from 1", words[0], words[1])
	}
	key, value, _ := strings.Cut(words[2], "=")
	if key != "bytes" && !isSample || key != "weight" && isSample {
		return fmt.Errorf("%q: a feature may have bytes=N, a sample weight=N", words[2])
	}
	weight, err := strconv.ParseUint(value, 10, 32)
	if err != nil || weight == 0 {
		return fmt.Errorf("%s: want a whole number from 1 to 2^32-1", words[2])
	}
	// Two lines could contradict each other, and the order of a file should not decide.
	if isSample {
		if rules.samples[int(id-1)] > 0 {
			return fmt.Errorf("sample %d has a rule already", id)
		}
		rules.samples[int(id-1)], rules.lines[int(id-1)] = uint32(weight), line
		return nil
	}
	if rules.features[id] > 0 {
		return fmt.Errorf("feature %d has a rule already", id)
	}
	rules.features[id] = uint32(weight)
	return nil
}

// Apply returns the graph with the weights of the rules. unused is the number of rules for features
// that no sample uses, which have no effect. A rule for a sample beyond the data is an error: the
// rules are probably of other data.
func (rules *Rules) Apply(g *graph.Graph) (weighted *graph.Graph, unused int, err error) {
	bytes, weights := slices.Repeat([]uint32{1}, g.Params()), slices.Repeat([]uint32{1}, g.Samples())
	used := 0
	for p := range bytes {
		if w, ok := rules.features[g.Feature(p)]; ok {
			used++
			bytes[p] = w
		}
	}
	for s, w := range rules.samples {
		if s >= len(weights) {
			return nil, 0, &dataset.LineError{File: rules.name, Line: rules.lines[s], Err: fmt.Errorf("sample %d: the data has only %d", s+1, len(weights))}
		}
		weights[s] = w
	}
	weighted, err = g.WithWeights(unlessPlain(bytes), unlessPlain(weights))
	return weighted, len(rules.features) - used, err
}

// unlessPlain returns weights, or nil if all are 1. Algorithms are faster without.
func unlessPlain(weights []uint32) []uint32 {
	if slices.ContainsFunc(weights, func(w uint32) bool { return w != 1 }) {
		return weights
	}
	return nil
}
