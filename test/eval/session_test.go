package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/ulikunitz/xz"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/require"
)

// madeRegression returns logistic regression on made text, which learns within a second.
func madeRegression(t *testing.T, steps int) *subject {
	t.Helper()
	var text, packed bytes.Buffer
	if _, err := dataset.WriteLibsvm(&text, dataset.SyntheticText(dataset.TextOptions{Samples: 2500, Features: 3000, Words: 40, Topics: 10, Noise: -1, Seed: 3})); err != nil {
		t.Fatal(err)
	}
	w := require.Value(xz.NewWriter(&packed))(t)
	if _, err := w.Write(text.Bytes()); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, w.Close())
	e := &evaluation{dir: t.TempDir(), datasets: t.TempDir(), scratch: t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(e.datasets, "made.xz"), packed.Bytes(), 0o600))
	s := require.Value(regression(e, "made.xz", steps, 16, kv.StoreSettings{Rule: "sgd", LearningRate: 20}))(t)
	return s
}

// TestThresholdLearns: under a threshold of 95% a model learns what it learns without one, once
// all that waited is sent, and pushes take a sixteenth. What waits at the end is missing until
// then.
func TestThresholdLearns(t *testing.T) {
	run := require.Value(madeRegression(t, 250).session(t.Context(), 1, nil))(t)
	train := func(rules ...values.Rule) *result {
		run.rules = rules
		r := require.Value(run.train(t.Context()))(t)
		return r
	}
	plain, sparse := train(), train(values.Rule{Threshold: 0.95, Unpulled: true})
	t.Logf("test loss %.4f; under a threshold %.4f, and once all is sent %.4f; pushes 1/%.1f", testLoss(plain), testLoss(sparse), lastLoss(sparse), sparse.pushed.ratio())
	if testLoss(plain) != lastLoss(plain) {
		t.Errorf("without a threshold the loss is %v, and %v after a push of nothing", testLoss(plain), lastLoss(plain))
	}
	if !(testLoss(plain) < 0.3) {
		t.Errorf("the model learned nothing: test loss %.4f", testLoss(plain))
	}
	if d := lastLoss(sparse) - testLoss(plain); !(d < 0.01) {
		t.Errorf("under a threshold the test loss is %.4f higher", d)
	}
	if testLoss(sparse) == lastLoss(sparse) {
		t.Error("nothing waited at the end")
	}
	if sparse.pushed.ratio() < 16 {
		t.Errorf("pushes are 1/%.1f", sparse.pushed.ratio())
	}
	if got := sparse.sent / plain.sent; got < 0.02 || got > 0.06 || plain.sent > 1 {
		t.Errorf("%.4f of all values go, %.4f without a threshold", sparse.sent, plain.sent)
	}
	if len(plain.losses) != run.steps || plain.losses[0] < 1.3*plain.losses[run.steps-1] {
		t.Errorf("%d steps, losses from %.3f to %.3f", len(plain.losses), plain.losses[0], plain.losses[len(plain.losses)-1])
	}
}
