package translate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/require"
)

func spread(t testing.TB) dataset.KeyMap {
	t.Helper()
	keys, err := dataset.ParseKeyMap("spread")
	require.NoError(t, err)
	return keys
}

func sentences(t testing.TB, n int) *Sentences {
	t.Helper()
	set, err := NewSentences(SyntheticSentences(n, 31, 1), spread(t), 32)
	require.NoError(t, err)
	return set
}

func translate(t testing.TB, set *Sentences, s Shape) *Model {
	t.Helper()
	keys := spread(t)
	m, err := New(set, s, 300, 5, keys.Key)
	require.NoError(t, err)
	return m
}

// Along any direction the loss has the slope that the gradient says.
func TestTranslateSlope(t *testing.T) {
	m := translate(t, sentences(t, 30), Shape{Width: 8, Heads: 2, Inner: 12, Layers: 2})
	batch := []int32{4, 9, 2, 21, 7}
	random := rand.New(rand.NewPCG(7, 0))
	var params, grads [][]float32
	for g, group := range m.Groups(batch) {
		params, grads = append(params, make([]float32, group.Values())), append(grads, make([]float32, group.Values()))
		for i := range params[g] {
			params[g][i] = 0.2*random.Float32() - 0.1
		}
	}
	at := func(g int, direction []float32, by float32) float64 {
		moved := [][]float32{slices.Clone(params[0]), slices.Clone(params[1])}
		addScaled(moved[g], by, direction)
		var tally model.Tally
		m.Score(batch, moved, &tally)
		return tally.Loss
	}
	m.Gradient(batch, [][]float32{slices.Clone(params[0]), slices.Clone(params[1])}, grads, &model.Tally{})
	for g := range grads {
		for part := range 8 {
			direction := make([]float32, len(grads[g]))
			from, to := part*len(direction)/8, (part+1)*len(direction)/8
			copy(direction[from:to], grads[g][from:to]) // uphill by some of the parameters
			norm := dot(direction, direction)
			const h = 1e-2
			by := float32(h / math.Sqrt(float64(norm)))
			slope := (at(g, direction, by) - at(g, direction, -by)) / (2 * float64(by))
			if math.Abs(slope-float64(norm)) > 0.03*float64(norm) {
				t.Errorf("group %d, part %d: slope %v, gradient %v", g, part, slope, norm)
			}
		}
	}
}

// A sentence counts as right where, and only where, it is translated so word by word.
func TestWordsAreWhatScoresSay(t *testing.T) {
	set := sentences(t, 300)
	m := translate(t, set, Shape{Width: 16, Heads: 2, Inner: 32, Layers: 1})
	stores, params, all := make([]*kv.Store, 2), make([][]float32, 2), make([]int32, m.Samples())
	for i := range all {
		all[i] = int32(i)
	}
	for g, group := range m.Groups(all) {
		var err error
		stores[g], err = kv.NewStore(kv.StoreSettings{Rule: "adagrad", LearningRate: 0.03, Beta: 1e-6, ValueLength: max(1, group.Width)})
		require.NoError(t, err)
	}
	pull := func() {
		for g, group := range m.Groups(all) {
			params[g] = require.Value(stores[g].Pull(0, group.Keys, group.Lens, nil))(t)
		}
	}
	for range 60 {
		pull()
		grads := [][]float32{make([]float32, len(params[0])), make([]float32, len(params[1]))}
		m.Gradient(all, params, grads, &model.Tally{})
		for g, group := range m.Groups(all) {
			require.NoError(t, stores[g].Push(0, group.Keys, grads[g], group.Lens))
		}
	}
	pull()
	words := m.Words(all, [][]float32{slices.Clone(params[0]), slices.Clone(params[1])})
	right, same := 0, 0
	for i := range all {
		var tally model.Tally
		// Groups are those of the batch; values go by key.
		one := m.Groups(all[i : i+1])
		own := [][]float32{nil, slices.Clone(params[1])}
		own[0] = require.Value(stores[0].Pull(0, one[0].Keys, one[0].Lens, nil))(t)
		m.Score(all[i:i+1], own, &tally)
		right += int(tally.Correct)
		equal := slices.Equal(words[i], set.Pair(i).Target)
		if equal {
			same++
		}
		if equal != (tally.Correct == 1) {
			t.Errorf("%v: %v for %v, counted right: %d", set.Pair(i).Source, words[i], set.Pair(i).Target, tally.Correct)
		}
	}
	if right == 0 || right == len(all) {
		t.Errorf("%d of %d are right, which shows nothing", right, len(all))
	}
	t.Logf("%d right, %d the same", right, same)
}

func TestTranslateShape(t *testing.T) {
	for _, s := range []Shape{{}, {Width: 7, Heads: 1, Inner: 4, Layers: 1}, {Width: 8, Heads: 3, Inner: 4, Layers: 1}, {Width: 8, Heads: 2, Inner: 4}} {
		if s.Check() == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
}

func TestSentences(t *testing.T) {
	s, err := NewSentences([]Sentence{{[]uint32{3, 1}, []uint32{2, 2, 4}}, {[]uint32{2, 3, 1}, []uint32{1}}}, dataset.KeyMap{}, 5)
	require.NoError(t, err)
	// Ids of sources are 1 + the word, of targets 6 + it; the mark is target 0.
	if got, want := fmt.Sprint(s.Sparse().Keys()), "[2 3 4 6 7 8 10]"; s.Len() != 2 || got != want {
		t.Fatalf("%d pairs, keys %s, want 2 and %s", s.Len(), got, want)
	}
	columns, _, _ := s.Sparse().Sample(0)
	var ids []uint64
	for _, c := range columns {
		ids = append(ids, s.Sparse().Keys()[c])
	}
	if got, want := fmt.Sprint(ids), "[4 2 6 8 8 10]"; got != want {
		t.Errorf("the first pair is %s, want %s", got, want)
	}
	for word, want := range []bool{true, true, true, false, true} {
		if _, ok := s.Column(uint32(word)); ok != want {
			t.Errorf("word %d has a column: %v", word, ok)
		}
	}
}
