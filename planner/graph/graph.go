// Package graph holds the bipartite correlation graph G(D + P, E) of a
// training job: an edge joins a data sample and a parameter that the sample
// uses (DWW21 section 3.4, DW23 section 3.1). It is built once, kept in
// compressed form in both directions, and read by the partitioners.
package graph

// A Graph is immutable once built, and safe for use by many goroutines.
// Samples are numbered 0..n-1 in the order of the input, parameters 0..m-1 in
// ascending order of their feature id; only ids that occur are parameters.
type Graph struct {
	sampleStart  []int64  // n+1 offsets into sampleParams
	sampleParams []uint32 // ascending within a sample
	paramStart   []int64  // m+1 offsets into paramSamples
	paramSamples []uint32 // ascending within a parameter
	features     []uint64 // m feature ids, ascending
	paramBytes   []uint32 // m sizes in bytes, or nil where all are alike
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
