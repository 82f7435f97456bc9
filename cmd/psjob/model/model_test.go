package model

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/require"
)

func spreadKeys(t testing.TB) dataset.KeyMap {
	t.Helper()
	keys := require.Value(dataset.ParseKeyMap("spread"))(t)
	return keys
}

func text(t testing.TB, o dataset.TextOptions, share Share) *Sparse {
	t.Helper()
	var b bytes.Buffer
	require.Value(dataset.WriteLibsvm(&b, dataset.SyntheticText(o)))(t)
	set := require.Value(LoadSparse(t.Context(), file(t, "text.libsvm", b.Bytes()), share, spreadKeys(t), false))(t)
	return set
}

func clicks(t testing.TB, o dataset.ClickOptions) *Clicks {
	t.Helper()
	var b bytes.Buffer
	require.Value(dataset.WriteCriteo(&b, dataset.SyntheticClicks(o)))(t)
	set := require.Value(LoadClicks(t.Context(), file(t, "clicks.tsv", b.Bytes()), Share{Of: 1}, spreadKeys(t), 1000))(t)
	return set
}

// pictures draws a bright bar whose place is the class.
func pictures(t testing.TB, n int) *Images {
	t.Helper()
	images := binary.BigEndian.AppendUint32([]byte{0, 0, 8, 3}, uint32(n))
	images = append(images, 0, 0, 0, 10, 0, 0, 0, 10)
	labels := binary.BigEndian.AppendUint32([]byte{0, 0, 8, 1}, uint32(n))
	for i := range n {
		class := i * 7 % Classes
		labels = append(labels, byte(class))
		for p := range 100 {
			grey := byte(unitRandom(uint64(i), uint64(p))*40 + 60)
			if p/10 == class {
				grey += 70
			}
			images = append(images, grey)
		}
	}
	set := require.Value(LoadImages(file(t, "images", images), file(t, "labels", labels), Share{Of: 1}))(t)
	return set
}

func file(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func models(t testing.TB) map[string]Model {
	t.Helper()
	keys := spreadKeys(t)
	set := text(t, dataset.TextOptions{Samples: 40, Features: 60, Words: 8, Topics: 2, Seed: 1}, Share{Of: 1})
	image := require.Value(NewImage(pictures(t, 30), []int{12}, 300, 5, keys.Key))(t)
	recommend, err := NewRecommend(clicks(t, dataset.ClickOptions{Samples: 30, Cardinality: 20}), RecommendShape{4, []int{20, 9}, []int{17}}, 999, 5, keys.Key)
	require.NoError(t, err)
	return map[string]Model{"linear": NewLinear(set), "factor": NewFactor(set, 4, 7), "image": image, "recommend": recommend}
}

// Gradients must equal the slope of the loss between two nearby points.
func TestGradients(t *testing.T) {
	for name, m := range models(t) {
		t.Run(name, func(t *testing.T) {
			batch := []int32{3, 1, 17, 25}
			groups := m.Groups(batch)
			params, grads := make([][]float32, len(groups)), make([][]float32, len(groups))
			for g, group := range groups {
				params[g] = make([]float32, group.Values())
				grads[g] = make([]float32, group.Values())
				for i := range params[g] {
					params[g][i] = 0.05 * unitRandom(99, uint64(i))
				}
			}
			loss := func(g, i int, shift float32) float64 {
				moved := make([][]float32, len(params))
				for h := range params {
					moved[h] = append([]float32(nil), params[h]...)
				}
				moved[g][i] += shift
				var tally Tally
				m.Score(batch, moved, &tally)
				return tally.Loss
			}
			moved := make([][]float32, len(params))
			for h := range params {
				moved[h] = append([]float32(nil), params[h]...)
			}
			var tally Tally
			m.Gradient(batch, moved, grads, &tally)
			if tally.Samples != int64(len(batch)) {
				t.Fatalf("%d samples counted, want %d", tally.Samples, len(batch))
			}
			wrong, checked := 0, 0
			for g := range grads {
				for i := 0; i < len(grads[g]); i += 1 + len(grads[g])/150 {
					const h = 1e-2
					want := (loss(g, i, h) - loss(g, i, -h)) / (2 * h)
					checked++
					// A ReLU between the two points makes a few differ.
					if got := float64(grads[g][i]); math.Abs(got-want) > 0.01+0.05*math.Abs(want) {
						wrong++
						t.Logf("group %d value %d: gradient %v, slope %v", g, i, got, want)
					}
				}
			}
			if wrong > checked/25 {
				t.Errorf("%d of %d gradients are wrong", wrong, checked)
			}
		})
	}
}

// train runs one worker against a store without a network.
func train(t testing.TB, m Model, s kv.StoreSettings, epochs, batchSize int) Tally {
	t.Helper()
	stores := make(map[int]*kv.Store)
	at := func(g int, group Group) *kv.Store {
		if stores[g] == nil {
			own := s
			own.ValueLength = max(1, group.Width)
			st := require.Value(kv.NewStore(own))(t)
			stores[g] = st
		}
		return stores[g]
	}
	var order []int32
	for i := range m.Samples() {
		order = append(order, int32(i))
	}
	step := int32(0)
	pass := func(learn bool) Tally {
		var tally Tally
		for from := 0; from < len(order); from += batchSize {
			batch := order[from:min(from+batchSize, len(order))]
			groups := m.Groups(batch)
			var params, grads [][]float32
			for g, group := range groups {
				p := require.Value(at(g, group).Pull(step, group.Keys, group.Lens, nil))(t)
				params, grads = append(params, p), append(grads, make([]float32, len(p)))
			}
			if !learn {
				m.Score(batch, params, &tally)
				continue
			}
			m.Gradient(batch, params, grads, &tally)
			for g, group := range groups {
				for i := range grads[g] {
					grads[g][i] /= float32(len(batch))
				}
				require.NoError(t, at(g, group).Push(step, group.Keys, grads[g], group.Lens))
			}
			step++
		}
		return tally
	}
	for range epochs {
		pass(true)
	}
	return pass(false)
}

func TestModelsLearn(t *testing.T) {
	keys := spreadKeys(t)
	set := text(t, dataset.TextOptions{Samples: 1500, Features: 3000, Words: 40, Topics: 10, Noise: -1, Seed: 1}, Share{Of: 1})
	image := require.Value(NewImage(pictures(t, 300), []int{16}, 500, 5, keys.Key))(t)
	recommend, err := NewRecommend(clicks(t, dataset.ClickOptions{Samples: 3000, Cardinality: 100}), RecommendShape{8, []int{64}, []int{64}}, 4096, 5, keys.Key)
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		model    Model
		settings kv.StoreSettings
		epochs   int
		measure  func(Tally) float64
		want     float64
	}{
		"linear":    {NewLinear(set), kv.StoreSettings{Rule: "ftrl", LearningRate: 1, Synchronous: true}, 5, func(t Tally) float64 { return t.Accuracy() }, 0.97},
		"factor":    {NewFactor(set, 4, 3), kv.StoreSettings{Rule: "adagrad", LearningRate: 0.3}, 5, func(t Tally) float64 { return t.Accuracy() }, 0.97},
		"image":     {image, kv.StoreSettings{Rule: "sgd", LearningRate: 0.3}, 20, func(t Tally) float64 { return t.Accuracy() }, 0.97},
		"recommend": {recommend, kv.StoreSettings{Rule: "sgd", LearningRate: 0.3}, 12, func(t Tally) float64 { return t.AUC() }, 0.75},
	} {
		t.Run(name, func(t *testing.T) {
			tally := train(t, tc.model, tc.settings, tc.epochs, 32)
			if got := tc.measure(tally); !(got >= tc.want) {
				t.Errorf("reached %.4f, want %.2f or more (loss %.4f)", got, tc.want, tally.MeanLoss())
			}
			t.Logf("reached %.4f, loss %.4f", tc.measure(tally), tally.MeanLoss())
		})
	}
}

func TestWorkersShareTheRows(t *testing.T) {
	o := dataset.TextOptions{Samples: 101, Features: 300, Words: 10}
	total, keys := 0, make(map[uint64]bool)
	for i := range 4 {
		part := text(t, o, Share{Index: i, Of: 4})
		total += part.Len()
		for _, key := range part.Keys() {
			keys[key] = true
		}
	}
	whole := text(t, o, Share{Of: 1})
	if total != whole.Len() || len(keys) != len(whole.Keys()) {
		t.Errorf("shares have %d rows and %d keys, the whole %d and %d", total, len(keys), whole.Len(), len(whole.Keys()))
	}
}
