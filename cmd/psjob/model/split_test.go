package model

import (
	"fmt"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/require"
)

// watcher is a splitter that lets everything pass, or nothing.
type watcher struct {
	name string
	seen *[]string
	cuts bool
}

func (w *watcher) Forward(rows []float32, width int) {
	*w.seen = append(*w.seen, fmt.Sprintf("%s forward %dx%d", w.name, len(rows)/width, width))
	if w.cuts {
		clear(rows)
	}
}

func (w *watcher) Backward(rows []float32, width int) {
	*w.seen = append(*w.seen, fmt.Sprintf("%s back %dx%d", w.name, len(rows)/width, width))
	if w.cuts {
		clear(rows)
	}
}

// A splitter sees what goes through a net behind its layer, in the order in which it
// goes; the gradient is as it was where it changes nothing, and is no more for what
// comes before it where it lets nothing pass.
func TestSplitterSeesWhatGoesThroughTheNet(t *testing.T) {
	keys := require.Value(dataset.ParseKeyMap("spread"))(t)
	m, err := NewRecommend(clicks(t, dataset.ClickOptions{Samples: 30, Cardinality: 20}), RecommendShape{4, []int{20, 9}, []int{17}}, 9999, 5, keys.Key)
	require.NoError(t, err)
	batch := []int32{3, 5, 8}
	gradient := func() [][]float32 {
		var params, grads [][]float32
		for _, g := range m.Groups(batch) {
			params, grads = append(params, make([]float32, g.Values())), append(grads, make([]float32, g.Values()))
		}
		m.Gradient(batch, params, grads, &Tally{})
		return grads
	}
	whole := gradient()
	var seen []string
	m.Split(map[int]Splitter{2: &watcher{"bottom", &seen, false}}, map[int]Splitter{1: &watcher{"top", &seen, false}})
	split := gradient()
	if want := []string{"bottom forward 3x9", "top forward 3x17", "top back 3x17", "bottom back 3x9"}; !slices.Equal(seen, want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
	for g := range whole {
		if !slices.Equal(split[g], whole[g]) {
			t.Errorf("group %d has another gradient", g)
		}
	}
	m.Split(nil, map[int]Splitter{1: &watcher{"top", &seen, true}})
	if cut := gradient(); slices.ContainsFunc(cut[0], func(v float32) bool { return v != 0 }) || !slices.ContainsFunc(cut[1], func(v float32) bool { return v != 0 }) {
		t.Error("embeddings have a gradient although nothing passes behind them, or nothing has one")
	}
	m.Split(nil, nil)
	if again := gradient(); !slices.Equal(again[0], whole[0]) {
		t.Error("the gradient is another one after splitters were taken out")
	}
}
