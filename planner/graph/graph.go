// Package graph holds the bipartite correlation graph G(D + P, E) of a training job: an edge joins
// a data sample and a parameter that the sample uses (DWW21 section 3.4, DW23 section 3.1). A graph
// is built once, kept in compressed form in both directions, and read by the partitioners.
//
// A [Builder] makes a graph of rows that are streamed, [FromRows] of a few rows in memory, and
// [Random] draws one for benchmarks.
//
// # Memory
//
// A graph of n samples, m parameters and e edges takes 8 (n+m+2) + 8 e + 8 m bytes: an edge is
// stored as 4 bytes in each direction.
//
// [MakeHuge] allocates large tables that are accessed in random order, the graph's and the
// partitioners', on huge pages. With pages of 4 KiB nearly every access to such a table misses the
// TLB as well as the cache, and the page walk takes longer than the access itself.
package graph

import (
	"fmt"
	"slices"
)

// A Graph is immutable once built and safe for concurrent use. Samples are numbered 0..n-1 in the
// order of the input, parameters 0..m-1 in ascending order of their feature ids; only ids that
// occur are parameters, so every parameter has at least one sample.
type Graph struct {
	sampleStart  []int64  // n+1 offsets into sampleParams
	sampleParams []uint32 // ascending within a sample
	paramStart   []int64  // m+1 offsets into paramSamples
	paramSamples []uint32 // ascending within a parameter
	features     []uint64 // m feature ids, ascending
	paramWeight  []uint32 // m sizes, for instance in bytes; nil means 1 each
	sampleWeight []uint32 // n weights; nil means 1 each
}

// Samples returns n, the number of samples.
func (g *Graph) Samples() int { return len(g.sampleStart) - 1 }

// Params returns m, the number of parameters that occur.
func (g *Graph) Params() int { return len(g.paramStart) - 1 }

// Edges returns the number of (sample, parameter) pairs.
func (g *Graph) Edges() int64 { return int64(len(g.sampleParams)) }

// ParamsOf returns N(s), the parameters of sample s, ascending. The slice
// belongs to the graph.
func (g *Graph) ParamsOf(s int) []uint32 {
	return g.sampleParams[g.sampleStart[s]:g.sampleStart[s+1]]
}

// SamplesOf returns N(p), the samples that use parameter p, ascending. The
// slice belongs to the graph.
func (g *Graph) SamplesOf(p int) []uint32 {
	return g.paramSamples[g.paramStart[p]:g.paramStart[p+1]]
}

// Feature returns the feature id of parameter p.
func (g *Graph) Feature(p int) uint64 { return g.features[p] }

// ParamWeight returns the weight of parameter p, what it takes to move or to hold it, for instance
// its size in bytes; 1 if the graph has no weights.
func (g *Graph) ParamWeight(p int) uint32 {
	if g.paramWeight == nil {
		return 1
	}
	return g.paramWeight[p]
}

// SampleWeight returns the weight of sample s, 1 if the graph has no weights.
func (g *Graph) SampleWeight(s int) uint32 {
	if g.sampleWeight == nil {
		return 1
	}
	return g.sampleWeight[s]
}

// SamplesWeight returns the sum of the samples' weights. It is computed at each call.
func (g *Graph) SamplesWeight() int64 {
	if g.sampleWeight == nil {
		return int64(g.Samples())
	}
	var sum int64
	for _, w := range g.sampleWeight {
		sum += int64(w)
	}
	return sum
}

// Weighted reports whether parameters differ in weight.
func (g *Graph) Weighted() bool { return g.paramWeight != nil }

// WithWeights returns a graph that shares g's edges and has the given weights of parameters (len m)
// and samples (len n); nil means 1 each. It takes over the slices. No weight may be 0.
func (g *Graph) WithWeights(params, samples []uint32) (*Graph, error) {
	if params != nil && len(params) != g.Params() {
		return nil, fmt.Errorf("%d parameter weights for %d parameters", len(params), g.Params())
	}
	if samples != nil && len(samples) != g.Samples() {
		return nil, fmt.Errorf("%d sample weights for %d samples", len(samples), g.Samples())
	}
	if p := slices.Index(params, 0); p >= 0 {
		return nil, fmt.Errorf("the weight of feature %d is 0: must be positive", g.Feature(p))
	}
	if s := slices.Index(samples, 0); s >= 0 {
		return nil, fmt.Errorf("the weight of sample %d is 0: must be positive", s)
	}
	weighted := *g
	weighted.paramWeight, weighted.sampleWeight = params, samples
	return &weighted, nil
}
