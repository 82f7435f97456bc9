package partition

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
)

// ReadEarlier reads what [WriteAssignment] wrote for earlier data, whose samples are the first ones
// of g in the same order. What the earlier data did not have gets machine -1. name is used in
// errors.
//
// The text does not say how many of its lines are samples. But each further sample adds a line, and
// one more for each parameter that it is the first to use, so only one number of samples fits the
// number of lines. If none fits, the assignment is of other data.
func ReadEarlier(r io.Reader, name string, g *graph.Graph, k int) (*Assignment, error) {
	machines, err := readMachines(r, name, g.Samples()+g.Params(), k)
	if err != nil {
		return nil, err
	}
	first := firstSamples(g)
	samples, err := earlierSamples(first, g.Samples(), len(machines))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	a := &Assignment{
		Samples: slices.Repeat([]int32{-1}, g.Samples()),
		Params:  slices.Repeat([]int32{-1}, g.Params()),
	}
	copy(a.Samples, machines[:samples])
	next := samples
	for p, s := range first {
		if int(s) < samples {
			a.Params[p] = machines[next]
			next++
		}
	}
	// The number of lines can fit by accident. A partition puts nearly all parameters at users of
	// them; if most are not, lines and samples do not belong together.
	if far := farFromUsers(g, a, samples); 2*far > len(machines)-samples {
		return nil, fmt.Errorf("%s: %d of %d parameters are on machines without a sample that uses them: it belongs to other data, or to a random partition; omit it", name, far, len(machines)-samples)
	}
	used := make([]bool, k)
	for _, machine := range machines {
		used[machine] = true
	}
	if i := slices.Index(used, false); i >= 0 {
		return nil, fmt.Errorf("%s has nothing on machine %d: it was not made for %d machines; use the original number, or omit it", name, i, k)
	}
	return a, nil
}

// farFromUsers returns how many parameters of a are on a machine none of whose samples, among the
// first ones, uses them.
func farFromUsers(g *graph.Graph, a *Assignment, samples int) (far int) {
	for p, owner := range a.Params {
		if owner >= 0 && !slices.ContainsFunc(g.SamplesOf(p), func(s uint32) bool {
			return int(s) < samples && a.Samples[s] == owner
		}) {
			far++
		}
	}
	return far
}

// readMachines reads a machine number below k from each line, of which there may be most.
func readMachines(r io.Reader, name string, most, k int) ([]int32, error) {
	var machines []int32
	lines := bufio.NewScanner(r)
	for line := 1; lines.Scan(); line++ {
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 && line > 1 {
			continue
		}
		machine, err := strconv.ParseUint(string(text), 10, 31)
		if err != nil || machine >= uint64(k) {
			return nil, &dataset.LineError{File: name, Line: line, Err: fmt.Errorf("%q: want a machine number from 0 to %d", text, k-1)}
		}
		if len(machines) == most {
			return nil, &dataset.LineError{File: name, Line: line, Err: fmt.Errorf("more lines than the %d samples and parameters of the data: it belongs to other data", most)}
		}
		machines = append(machines, int32(machine))
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the assignment %s, after line %d: %w", name, len(machines), err)
	}
	return machines, nil
}

// firstSamples returns the first sample that uses each parameter.
func firstSamples(g *graph.Graph) []uint32 {
	first := make([]uint32, g.Params())
	for p := range first {
		first[p] = g.SamplesOf(p)[0]
	}
	return first
}

// earlierSamples returns how many of the n samples make that many lines, together with the
// parameters that they use.
func earlierSamples(first []uint32, n, lines int) (int, error) {
	fresh := make([]uint32, n)
	for _, s := range first {
		fresh[s]++
	}
	samples, sum := 0, 0
	for ; samples < n && sum < lines; samples++ {
		sum += 1 + int(fresh[samples])
	}
	if sum != lines || lines == 0 {
		return 0, fmt.Errorf("its %d lines belong to other data: the first %d samples and their parameters make %d lines; only samples may be appended to the data", lines, samples, sum)
	}
	return samples, nil
}
