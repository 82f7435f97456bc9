package graph

import (
	"fmt"
	"math"
	"slices"
)

// FromRows builds the graph of rows of feature ids, one row per sample. The ids of a row may come
// in any order but must be distinct. It is the simple way to make a small graph; a [Builder] takes
// less memory and all cores.
func FromRows(rows [][]uint64) (*Graph, error) {
	if len(rows) > math.MaxUint32 {
		return nil, fmt.Errorf("%d samples: at most %d", len(rows), math.MaxUint32)
	}
	g := &Graph{sampleStart: make([]int64, len(rows)+1)}
	for _, row := range rows {
		g.features = append(g.features, row...)
	}
	g.sampleParams = make([]uint32, 0, len(g.features))
	slices.Sort(g.features)
	// A parameter's number is the rank of its feature id, as in graphs that a Builder makes.
	g.features = slices.Compact(g.features)
	for s, row := range rows {
		start := len(g.sampleParams)
		for _, id := range row {
			p, _ := slices.BinarySearch(g.features, id)
			g.sampleParams = append(g.sampleParams, uint32(p))
		}
		own := g.sampleParams[start:]
		slices.Sort(own)
		if i := duplicate(own); i >= 0 {
			return nil, fmt.Errorf("sample %d: duplicate feature id %d", s, g.features[own[i]])
		}
		g.sampleStart[s+1] = int64(len(g.sampleParams))
	}
	g.transpose()
	return g, nil
}

// duplicate returns the index of an element that equals the next one, or -1.
func duplicate(sorted []uint32) int {
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return i - 1
		}
	}
	return -1
}

// transpose fills paramStart and paramSamples from the samples' lists by a counting sort, so that
// the samples of each parameter ascend.
func (g *Graph) transpose() {
	m := len(g.features)
	g.paramStart = make([]int64, m+1)
	for _, p := range g.sampleParams {
		g.paramStart[p+1]++
	}
	for p := range m {
		g.paramStart[p+1] += g.paramStart[p]
	}
	// next[p] is where the next sample of p goes; samples are visited in ascending order.
	next := slices.Clone(g.paramStart[:m])
	g.paramSamples = make([]uint32, len(g.sampleParams))
	for s := range g.Samples() {
		for _, p := range g.ParamsOf(s) {
			g.paramSamples[next[p]] = uint32(s)
			next[p]++
		}
	}
}
