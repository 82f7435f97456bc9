package pipeline

import (
	"container/heap"
	"math"
	"slices"

	"github.com/psidecar/psidecar/planner/dataset"
)

// sketchSize is the number of features that a sketch keeps, at least 8 for each part of the
// outcome. The estimate is within some percent.
const sketchSize = 4096

// A sketch is an even sample of distinct features: those whose hashes are least (Bar-Yossef and
// others, RANDOM 2002). The sketch of a union is the union of the sketches, cut to size, so
// that shards can be read apart from each other. It is not for concurrent use.
type sketch struct {
	size  int
	heap  hashes // the largest hash first
	has   map[uint64]bool
	limit uint64 // features with this hash or above were left out, MaxUint64: none
}

// hashes are features in a heap by their hashes. [dataset.Spread] is a bijection, so features
// need not be kept beside the hashes.
type hashes []uint64 // of the features; the hash can be undone, see [dataset.Spread]

func (h hashes) Len() int           { return len(h) }
func (h hashes) Less(i, j int) bool { return dataset.Spread(h[i]) > dataset.Spread(h[j]) }
func (h hashes) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *hashes) Push(x any)        { *h = append(*h, x.(uint64)) }
func (h *hashes) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// newSketch returns the sketch of no features.
func newSketch(size int) *sketch {
	return &sketch{size: size, has: make(map[uint64]bool, size), limit: math.MaxUint64}
}

// add adds a feature, which may have been added before.
func (s *sketch) add(id uint64) {
	if dataset.Spread(id) >= s.limit || s.has[id] {
		return
	}
	s.has[id] = true
	heap.Push(&s.heap, id)
	for len(s.heap) > s.size {
		s.pop()
	}
}

// pop leaves out the feature with the largest hash.
func (s *sketch) pop() {
	id := heap.Pop(&s.heap).(uint64)
	delete(s.has, id)
	s.limit = dataset.Spread(id)
}

// full reports whether features were left out, so that ids is a sample and not all.
func (s *sketch) full() bool { return s.limit != math.MaxUint64 }

// ids returns the sample, ascending by feature, not by hash.
func (s *sketch) ids() []uint64 { return slices.Sorted(slices.Values(s.heap)) }

// estimate returns about how many distinct features there are: those kept, divided by the share
// of all hashes that are below the limit.
func (s *sketch) estimate() float64 {
	return float64(len(s.heap)) / (float64(s.limit) / (1 << 64))
}

// merge adds another set, given by the ids of its sketch of the same size, and full of that.
func (s *sketch) merge(ids []uint64, full bool) {
	var largest uint64
	for _, id := range ids {
		s.add(id)
		largest = max(largest, dataset.Spread(id))
	}
	if full {
		s.limit = min(s.limit, largest+1) // nobody knows what the other had above
	}
}
