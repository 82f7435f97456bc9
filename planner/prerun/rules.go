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
	"github.com/psidecar/psidecar/planner/partition"
)

// Rules are constraints on individual parameters and samples: their weight, which parameters stay
// together, and on which machine they are.
type Rules struct {
	features map[uint64]rule
	// By sample, from 0.
	samples map[int]rule
	// The groups' names; a rule's group is an index.
	groups []string
	// By sample, the line of its rule, for errors that are found only when the data is known.
	lines map[int]int
	name  string
}

// A rule is what one line says.
type rule struct {
	// 0 if not given.
	weight uint32
	// -1 for none.
	group int32
	// -1 for any.
	machine int32
}

// ReadRules parses a text with lines such as
//
//	feature 17 bytes=256 group=user-embedding machine=0
//	sample 3 weight=2 machine=1
//
// A feature is named by its id, a sample by its position in the data, counted from 1. Each rule on
// a line is optional. Comments start with #. k is the number of machines; name is used in errors,
// which are [dataset.LineError].
func ReadRules(r io.Reader, name string, k int) (*Rules, error) {
	rules := &Rules{features: map[uint64]rule{}, samples: map[int]rule{}, lines: map[int]int{}, name: name}
	lines := bufio.NewScanner(r)
	for line := 1; lines.Scan(); line++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		if err := rules.addRule(words, line, k); err != nil {
			return nil, &dataset.LineError{File: name, Line: line, Err: err}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the rules %s: %w", name, err)
	}
	return rules, nil
}

// addRule parses one line.
func (rules *Rules) addRule(words []string, line, k int) error {
	if len(words) < 3 || words[0] != "feature" && words[0] != "sample" {
		return fmt.Errorf("want \"feature ID\" or \"sample NUMBER\" and then rules, got %q", strings.Join(words, " "))
	}
	id, err := strconv.ParseUint(words[1], 10, 64)
	isSample := words[0] == "sample"
	if err != nil || id > dataset.MaxID || isSample && (id == 0 || id > math.MaxInt32) {
		return fmt.Errorf("%s %q: want a feature id up to 2^63, or a sample's place from 1", words[0], words[1])
	}
	parsed := rule{group: -1, machine: -1}
	for _, word := range words[2:] {
		if err := rules.parse(&parsed, word, isSample, k); err != nil {
			return err
		}
	}
	if isSample {
		// Two lines could contradict each other, and the order of a file should not decide.
		if _, twice := rules.samples[int(id-1)]; twice {
			return fmt.Errorf("sample %d has a rule already", id)
		}
		rules.samples[int(id-1)], rules.lines[int(id-1)] = parsed, line
		return nil
	}
	if _, twice := rules.features[id]; twice {
		return fmt.Errorf("feature %d has a rule already", id)
	}
	rules.features[id] = parsed
	return nil
}

// parse parses one word into r.
func (rules *Rules) parse(r *rule, word string, isSample bool, k int) error {
	key, value, _ := strings.Cut(word, "=")
	switch {
	case key == "machine":
		machine, err := strconv.ParseUint(value, 10, 31)
		if err != nil || machine >= uint64(k) {
			return fmt.Errorf("%s: want a machine from 0 to %d", word, k-1)
		}
		r.machine = int32(machine)
	case key == "bytes" && !isSample || key == "weight" && isSample:
		weight, err := strconv.ParseUint(value, 10, 32)
		if err != nil || weight == 0 {
			return fmt.Errorf("%s: want a whole number from 1 to 2^32-1", word)
		}
		r.weight = uint32(weight)
	case key == "group" && !isSample && value != "":
		r.group = int32(slices.Index(rules.groups, value))
		if r.group < 0 {
			// Groups are numbered in the order in which they are first named.
			r.group = int32(len(rules.groups))
			rules.groups = append(rules.groups, value)
		}
	default:
		return fmt.Errorf("%q: a feature may have bytes=N, group=NAME and machine=I, a sample weight=N and machine=I", word)
	}
	return nil
}

// Apply returns the graph with the weights of the rules, and enters the other rules in o. unused is
// the number of rules for features that no sample uses, which have no effect. A rule for a sample
// beyond the data is an error: the rules are probably of other data.
//
// A group with a single parameter in the data has no effect either. A group in which one parameter
// has a machine is bound to that as a whole.
func (rules *Rules) Apply(g *graph.Graph, o *partition.Options) (weighted *graph.Graph, unused int, err error) {
	n, m := g.Samples(), g.Params()
	// Everything starts as if no rule existed; lists that stay so are dropped at the end.
	bytes, weights := fill(m, uint32(1)), fill(n, uint32(1))
	o.Group, o.FixedParams, o.FixedSamples = fill(m, int32(-1)), fill(m, int32(-1)), fill(n, int32(-1))
	used := 0
	for p := range m {
		r, ok := rules.features[g.Feature(p)]
		if !ok {
			continue
		}
		used++
		o.Group[p], o.FixedParams[p] = r.group, r.machine
		bytes[p] = max(1, r.weight)
	}
	for s, r := range rules.samples {
		if s >= n {
			return nil, 0, &dataset.LineError{File: rules.name, Line: rules.lines[s], Err: fmt.Errorf("sample %d: the data has only %d", s+1, n)}
		}
		o.FixedSamples[s] = r.machine
		weights[s] = max(1, r.weight)
	}
	// A list without any rule must not turn on an algorithm's slower path.
	o.Group, o.FixedParams, o.FixedSamples = unless(-1, o.Group), unless(-1, o.FixedParams), unless(-1, o.FixedSamples)
	weighted, err = g.WithWeights(unless(1, bytes), unless(1, weights))
	return weighted, len(rules.features) - used, err
}

// fill returns n times value.
func fill[T any](n int, value T) []T {
	list := make([]T, n)
	for i := range list {
		list[i] = value
	}
	return list
}

// unless returns list, or nil if all its elements are plain. Algorithms skip checks for lists that
// are nil.
func unless[T comparable](plain T, list []T) []T {
	for _, v := range list {
		if v != plain {
			return list
		}
	}
	return nil
}
