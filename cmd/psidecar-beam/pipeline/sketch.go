package pipeline

import (
	"container/heap"
	"math"
	"slices"

	"github.com/psidecar/psidecar/planner/dataset"
)

// sketchSize is the number of features that a sketch keeps.
const sketchSize = 4096

// A sketch is an even sample of distinct features: those whose hashes are least
// (Bar-Yossef and others, RANDOM 2002). The sketch of several sets is that of
// their sketches.
type sketch struct {
	size  int
	heap  hashes // the largest first
	has   map[uint64]bool
	limit uint64 // features with this hash or above were left out, MaxUint64: none
}

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

func newSketch(size int) *sketch {
	return &sketch{size: size, has: make(map[uint64]bool, size), limit: math.MaxUint64}
}

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

func (s *sketch) pop() {
	id := heap.Pop(&s.heap).(uint64)
	delete(s.has, id)
	s.limit = dataset.Spread(id)
}

func (s *sketch) full() bool { return s.limit != math.MaxUint64 }

// ids returns the sample, ascending.
func (s *sketch) ids() []uint64 { return slices.Sorted(slices.Values(s.heap)) }

// estimate returns about how many features there are.
func (s *sketch) estimate() float64 {
	return float64(len(s.heap)) / (float64(s.limit) / (1 << 64))
}

// merge makes the sketch that of another set too, whose sketch of the same size
// has ids. full is whether the other left features out.
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
