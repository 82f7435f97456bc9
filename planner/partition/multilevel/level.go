package multilevel

import (
	"fmt"
	"math"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// A level is the hypergraph at one stage of coarsening. Vertices 0 to samples-1 are merged samples,
// the others merged parameters. It is not changed once built.
//
// A net has its parameter as its last pin, also on coarse levels: parameters are only merged with
// parameters and are numbered after all samples, so sorting keeps it last.
type level struct {
	samples int // number of merged samples
	// By vertex, the weight of its samples; 0 for parameters, which do not count towards a
	// machine's limit.
	weight []int64
	// By vertex, the machine on which it must be, or -1.
	fixed []int32
	// Offsets into pins, one more than nets.
	pinStart []int64
	// By net, its samples, ascending, then its parameter.
	pins []int32
	// By net, the weight of its parameters.
	netCost []int32
	// Offsets into nets, one more than vertices.
	netStart []int64
	// By vertex, its nets, ascending.
	nets []int32

	// At coarser levels, the vertex here of each vertex of the finer level.
	finer []int32
}

func (l *level) vertices() int          { return len(l.weight) }
func (l *level) netCount() int          { return len(l.netCost) }
func (l *level) pinsOf(e int32) []int32 { return l.pins[l.pinStart[e]:l.pinStart[e+1]] }
func (l *level) netsOf(v int32) []int32 { return l.nets[l.netStart[v]:l.netStart[v+1]] }
func (l *level) isSample(v int32) bool  { return int(v) < l.samples }
func (l *level) paramOf(e int32) int32  { return l.pins[l.pinStart[e+1]-1] }
func (l *level) samplesOf(e int32) []int32 {
	return l.pins[l.pinStart[e] : l.pinStart[e+1]-1]
}

// heaviest returns the weight of the heaviest vertex.
func (l *level) heaviest() (w int64) {
	for _, x := range l.weight {
		w = max(w, x)
	}
	return w
}

// newLevel returns the finest level: a vertex for each sample, then one for each parameter. It fails if vertices or costs do not fit in 32
// bits, which keeps the tables of gains half as large.
func newLevel(g *graph.Graph, o partition.Options) (*level, error) {
	l := &level{samples: g.Samples()}
	if int64(g.Samples())+int64(g.Params()) > math.MaxInt32 {
		return nil, fmt.Errorf("multilevel partition: %d samples and %d parameters: at most %d together", g.Samples(), g.Params(), math.MaxInt32)
	}
	l.weight = make([]int64, g.Samples()+g.Params())
	l.fixed = make([]int32, len(l.weight))
	for v := range l.fixed {
		l.fixed[v] = -1
	}
	for s := range g.Samples() {
		l.weight[s] = int64(g.SampleWeight(s))
		if o.FixedSamples != nil {
			l.fixed[s] = o.FixedSamples[s]
		}
	}
	l.pinStart = make([]int64, 1, g.Params()+1)
	l.pins = make([]int32, 0, g.Edges()+int64(g.Params()))
	var sum int64
	for p := range g.Params() {
		for _, s := range g.SamplesOf(p) {
			l.pins = append(l.pins, int32(s))
		}
		l.pins = append(l.pins, int32(l.samples+p))
		l.pinStart = append(l.pinStart, int64(len(l.pins)))
		l.netCost = append(l.netCost, int32(g.ParamWeight(p)))
		sum += int64(g.ParamWeight(p))
	}
	if sum > math.MaxInt32 {
		return nil, fmt.Errorf("multilevel partition: parameters of weight %d: at most %d; give weights in larger units", sum, math.MaxInt32)
	}
	l.transpose()
	return l, nil
}

// transpose fills netStart and nets from the pins, by a counting sort.
func (l *level) transpose() {
	l.netStart = make([]int64, l.vertices()+1)
	for _, v := range l.pins {
		l.netStart[v+1]++
	}
	for v := range l.vertices() {
		l.netStart[v+1] += l.netStart[v]
	}
	at := append([]int64(nil), l.netStart[:l.vertices()]...)
	l.nets = make([]int32, len(l.pins))
	for e := range int32(l.netCount()) {
		for _, v := range l.pinsOf(e) {
			l.nets[at[v]] = e
			at[v]++
		}
	}
}

// project returns the partition of the finer level that follows from this one's: each vertex is
// where the vertex is into which it was merged.
func (l *level) project(part []int32) []int32 {
	finer := make([]int32, len(l.finer))
	for v, coarse := range l.finer {
		finer[v] = part[coarse]
	}
	return finer
}
