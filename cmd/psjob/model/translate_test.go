package model

import (
	"math"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
)

func translate(t testing.TB, set *Sentences, s TranslateShape) *Translate {
	t.Helper()
	keys := spreadKeys(t)
	m, err := NewTranslate(set, s, 300, 5, keys.Key)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Along any direction the loss has the slope that the gradient says.
func TestTranslateSlope(t *testing.T) {
	m := translate(t, sentences(t, 30), TranslateShape{Width: 8, Heads: 2, Inner: 12, Layers: 2})
	batch := []int32{4, 9, 2, 21, 7}
	var params, grads [][]float32
	for g, group := range m.Groups(batch) {
		params, grads = append(params, make([]float32, group.Values())), append(grads, make([]float32, group.Values()))
		for i := range params[g] {
			params[g][i] = 0.1 * unitRandom(7, uint64(i))
		}
	}
	at := func(g int, direction []float32, by float32) float64 {
		moved := [][]float32{slices.Clone(params[0]), slices.Clone(params[1])}
		addScaled(moved[g], by, direction)
		var tally Tally
		m.Score(batch, moved, &tally)
		return tally.Loss
	}
	m.Gradient(batch, [][]float32{slices.Clone(params[0]), slices.Clone(params[1])}, grads, &Tally{})
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
	m := translate(t, set, TranslateShape{Width: 16, Heads: 2, Inner: 32, Layers: 1})
	stores, params, all := make([]*kv.Store, 2), make([][]float32, 2), make([]int32, m.Samples())
	for i := range all {
		all[i] = int32(i)
	}
	for g, group := range m.Groups(all) {
		var err error
		if stores[g], err = kv.NewStore(kv.StoreSettings{Rule: "adagrad", LearningRate: 0.03, Beta: 1e-6, ValueLength: max(1, group.Width)}); err != nil {
			t.Fatal(err)
		}
	}
	pull := func() {
		for g, group := range m.Groups(all) {
			var err error
			if params[g], err = stores[g].Pull(0, group.Keys, group.Lens, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 60 {
		pull()
		grads := [][]float32{make([]float32, len(params[0])), make([]float32, len(params[1]))}
		m.Gradient(all, params, grads, &Tally{})
		for g, group := range m.Groups(all) {
			if err := stores[g].Push(0, group.Keys, grads[g], group.Lens); err != nil {
				t.Fatal(err)
			}
		}
	}
	pull()
	words := m.Words(all, [][]float32{slices.Clone(params[0]), slices.Clone(params[1])})
	right, same := 0, 0
	for i := range all {
		var tally Tally
		// Groups are those of the batch; values go by key.
		one := m.Groups(all[i : i+1])
		own := [][]float32{nil, slices.Clone(params[1])}
		var err error
		if own[0], err = stores[0].Pull(0, one[0].Keys, one[0].Lens, nil); err != nil {
			t.Fatal(err)
		}
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
	for _, s := range []TranslateShape{{}, {Width: 7, Heads: 1, Inner: 4, Layers: 1}, {Width: 8, Heads: 3, Inner: 4, Layers: 1}, {Width: 8, Heads: 2, Inner: 4}} {
		if s.Check() == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
}
