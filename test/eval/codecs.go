package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/ulikunitz/xz"
	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/cmd/psjob/metric"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/cmd/psjob/samples"
	"github.com/psidecar/psidecar/cmd/psjob/store"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// workers is how many share the training data in the codecs' evaluations.
const workers = 4

// A subject is a model on a data set, to be trained again and again.
type subject struct {
	name     string
	steps    int
	batch    int
	settings store.Settings
	load     func(ctx context.Context, share samples.Share, test bool, seed uint64) (model.Model, error)
}

// session prepares a run of the subject.
func (s *subject) session(ctx context.Context, seed uint64, rules []values.Rule) (*session, error) {
	run := &session{settings: s.settings, batch: s.batch, steps: s.steps, seed: seed, rules: rules}
	for i := range workers {
		m, err := s.load(ctx, samples.Share{Index: i, Of: workers}, false, seed)
		if err != nil {
			return nil, err
		}
		run.models = append(run.models, m)
	}
	var err error
	run.test, err = s.load(ctx, samples.Share{Index: 0, Of: 1}, true, seed)
	return run, err
}

// split writes a text data set's lines to two files: every fifth is for tests.
func split(e *evaluation, name string) (train, test string, err error) {
	in, err := os.Open(filepath.Join(e.datasets, name))
	if err != nil {
		return "", "", fmt.Errorf("a data set: %w", err)
	}
	defer in.Close()
	r, err := xz.NewReader(bufio.NewReader(in))
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", name, err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", name, err)
	}
	var parts [2]bytes.Buffer
	n := 0
	for line := range bytes.Lines(text) {
		at := 0
		if n++; n%5 == 0 {
			at = 1
		}
		parts[at].Write(line)
	}
	train, test = filepath.Join(e.dir, name+".train"), filepath.Join(e.dir, name+".test")
	for i, path := range []string{train, test} {
		if err := os.WriteFile(path, parts[i].Bytes(), 0o644); err != nil {
			return "", "", err
		}
	}
	return train, test, nil
}

// keys spreads ids over the key space, as psjob does by default.
func keys() dataset.KeyMap {
	m, err := dataset.ParseKeyMap("spread")
	if err != nil {
		panic(err) // a constant
	}
	return m
}

// recommender is DCT's model in small, on rows in the format of Criteo Kaggle.
func recommender(e *evaluation) (*subject, error) {
	train, test, err := split(e, "criteo-raw-7k.csv.xz")
	if err != nil {
		return nil, err
	}
	return &subject{
		name: "recommender, criteo-raw-7k", steps: 360, batch: 32, settings: store.Settings{Rule: "sgd", Synchronous: true, LearningRate: 0.1, ValueLength: 16},
		load: func(ctx context.Context, share samples.Share, isTest bool, seed uint64) (model.Model, error) {
			path := train
			if isTest {
				path = test
			}
			set, err := samples.LoadClicks(ctx, path, share, keys(), 10_000)
			if err != nil {
				return nil, err
			}
			spread := keys()
			return model.NewRecommend(set, model.RecommendShape{Embedding: 16, Bottom: []int{64}, Top: []int{64}}, 1<<16, seed, spread.Key)
		},
	}, nil
}

// regression is logistic regression on a libsvm set.
func regression(e *evaluation, file string, steps, batch int) (*subject, error) {
	train, test, err := split(e, file)
	if err != nil {
		return nil, err
	}
	return &subject{
		name: "logistic regression, " + file, steps: steps, batch: batch,
		settings: store.Settings{Rule: "ftrl", Synchronous: true, LearningRate: 1, Beta: 0.01, ValueLength: 1},
		load: func(ctx context.Context, share samples.Share, isTest bool, _ uint64) (model.Model, error) {
			path := train
			if isTest {
				path = test
			}
			set, err := samples.LoadSparse(ctx, path, share, keys(), true)
			if err != nil {
				return nil, err
			}
			return model.NewLinear(set), nil
		},
	}, nil
}

// pictures is an image model of one hidden layer.
func pictures(e *evaluation) *subject {
	file := func(name string) string { return filepath.Join(e.datasets, name+"-ubyte.xz") }
	share, steps := 8, 480 // of the training pictures, one in so many
	if e.full {
		share, steps = 2, 1600
	}
	return &subject{
		name: "MLP 784-64-10, pictures", steps: steps, batch: 16, settings: store.Settings{Rule: "sgd", Synchronous: true, LearningRate: 0.2, ValueLength: 1},
		load: func(_ context.Context, s samples.Share, isTest bool, seed uint64) (model.Model, error) {
			images, labels := file("train-images-idx3"), file("train-labels-idx1")
			if isTest {
				images, labels = file("t10k-images-idx3"), file("t10k-labels-idx1")
				s.Of = 4
			} else {
				s.Of *= share
			}
			set, err := samples.LoadImages(images, labels, s)
			if err != nil {
				return nil, err
			}
			spread := keys()
			return model.NewImage(set, 64, 1<<16, seed, spread.Key)
		},
	}
}

// A variant is rules by a name.
type variant struct {
	name  string
	rules []values.Rule
}

// measured is what a variant's runs with several seeds gave.
type measured struct {
	variant
	runs []*result
}

// seeds is how many runs there are of each variant.
func (e *evaluation) seeds() int {
	if e.quick {
		return 1
	}
	return 3
}

// measure trains a subject in all variants.
func (s *subject) measure(ctx context.Context, e *evaluation, every int, variants []variant) ([]measured, error) {
	all := make([]measured, len(variants))
	for i, v := range variants {
		all[i].variant = v
	}
	for seed := range e.seeds() {
		run, err := s.session(ctx, uint64(seed+1), nil)
		if err != nil {
			return nil, err
		}
		run.every = every
		if e.quick {
			run.steps /= 4
		}
		for i, v := range variants {
			run.rules = v.rules
			r, err := run.train(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", s.name, v.name, err)
			}
			e.progress("%s, %s, seed %d: train loss %.4f, test loss %.4f, accuracy %.4f, pushes 1/%.1f, pulls 1/%.2f", s.name, v.name, seed+1,
				r.train.MeanLoss(), r.test.MeanLoss(), r.test.Accuracy(), r.pushed.ratio(), r.pulled.ratio())
			all[i].runs = append(all[i].runs, r)
		}
	}
	return all, nil
}

func (t traffic) ratio() float64 { return float64(t.plain) / float64(max(1, t.encoded)) }

// spread returns mean and standard deviation of what of returns for each run.
func (m *measured) spread(of func(*result) float64) (mean, deviation float64) {
	for _, r := range m.runs {
		mean += of(r) / float64(len(m.runs))
	}
	for _, r := range m.runs {
		d := of(r) - mean
		deviation += d * d
	}
	return mean, math.Sqrt(deviation / float64(max(1, len(m.runs)-1)))
}

func (m *measured) cell(format string, of func(*result) float64) string {
	mean, deviation := m.spread(of)
	return fmt.Sprintf(format+" ± "+format, mean, deviation)
}

func testLoss(r *result) float64     { return r.test.MeanLoss() }
func testAccuracy(r *result) float64 { return 100 * r.test.Accuracy() }

// sparsities are those of DCT's table 2.
var sparsities = []float64{0, 0.75, 0.9, 0.95, 0.98, 0.995}

// thresholds repeats DCT's table 2: train and test loss and accuracy by
// sparsity, the dense layers alone as there, and all layers.
func thresholds(ctx context.Context, e *evaluation) error {
	rec, err := recommender(e)
	if err != nil {
		return err
	}
	lr80k, err := regression(e, "criteo-80k.libsvm.xz", 400, 64)
	if err != nil {
		return err
	}
	rcv1, err := regression(e, "rcv1-excerpt.libsvm.xz", 300, 32)
	if err != nil {
		return err
	}
	var panels []panel
	for _, c := range []struct {
		*subject
		title string
		least int
	}{{rec, "dense layers", values.DenseValues}, {rec, "all layers", 0}, {lr80k, "", 0}, {rcv1, "", 0}} {
		var variants []variant
		for _, eta := range sparsities {
			v := variant{name: "none"}
			if eta > 0 {
				v = variant{fmt.Sprintf("%g%%", 100*eta), []values.Rule{{Threshold: eta, LeastValues: c.least}}}
			}
			variants = append(variants, v)
		}
		all, err := c.measure(ctx, e, 0, variants)
		if err != nil {
			return err
		}
		name := c.name
		if c.title != "" {
			name += ", " + c.title
		}
		t := table{title: fmt.Sprintf("%s (%d workers, %d seeds, %d steps; mean ± standard deviation; bytes with meta and keys)", name, workers, e.seeds(), c.steps),
			head: []string{"sparsity", "train loss", "test loss", "test accuracy %", "test loss against none", "and once all is sent", "bytes of pushes"}}
		lines := make([]line, 2)
		lines[0].name, lines[1].name = "train", "test"
		for i := range all {
			m := &all[i]
			trainMean, _ := m.spread(func(r *result) float64 { return r.train.MeanLoss() })
			testMean, _ := m.spread(testLoss)
			lines[0].points = append(lines[0].points, plotter.XY{X: float64(i), Y: trainMean})
			lines[1].points = append(lines[1].points, plotter.XY{X: float64(i), Y: testMean})
			// Paired: the same seed without a codec.
			against, last := &measured{}, &measured{}
			for k := range m.runs {
				none := all[0].runs[k].test.MeanLoss()
				against.runs = append(against.runs, &result{test: metric.Tally{Samples: 1, Loss: m.runs[k].test.MeanLoss() - none}})
				last.runs = append(last.runs, &result{test: metric.Tally{Samples: 1, Loss: m.runs[k].last.MeanLoss() - none}})
			}
			t.add(m.name, m.cell("%.4f", func(r *result) float64 { return r.train.MeanLoss() }), m.cell("%.4f", testLoss), m.cell("%.2f", testAccuracy),
				against.cell("%+.4f", testLoss), last.cell("%+.4f", testLoss), fmt.Sprintf("1/%.1f", all[i].ratio()))
		}
		if err := t.write(e.out); err != nil {
			return err
		}
		panels = append(panels, panel{title: name, x: "sparsity: 0, 75, 90, 95, 98, 99.5%", y: "loss", lines: lines})
	}
	return e.writePlot("threshold.png", func(w io.Writer) error { return writePanels(w, panels) })
}

func (m *measured) ratio() float64 {
	mean, _ := m.spread(func(r *result) float64 { return r.pushed.ratio() })
	return mean
}

// lifespans repeats DCT's figure 7 a and b: what a threshold's life-span costs
// in time and loss, at 95%.
func lifespans(ctx context.Context, e *evaluation) error {
	rec, err := recommender(e)
	if err != nil {
		return err
	}
	variants := []variant{{name: "none"}}
	spans := []int{1, 10, 100, 1000}
	for _, l := range spans {
		variants = append(variants, variant{fmt.Sprint(l), []values.Rule{{Threshold: 0.95, Lifespan: l}}})
	}
	all, err := rec.measure(ctx, e, 0, variants)
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("Life-span of a threshold, %s, sparsity 95%% (DCT Fig. 7 a, b; time is that of the codec, both ends, of all pushes)", rec.name),
		head: []string{"L", "codec ms a step", "ns a value", "train loss", "test loss", "bytes of pushes"}}
	var cost, loss line
	cost.name, loss.name = "codec", "test loss"
	for i := range all {
		m := &all[i]
		steps := float64(rec.steps)
		if e.quick {
			steps /= 4
		}
		ms, _ := m.spread(func(r *result) float64 { return 1e3 * r.codec.Seconds() / steps })
		ns, _ := m.spread(func(r *result) float64 { return 1e9 * r.codec.Seconds() / (float64(r.pushed.plain) / 4) })
		t.add(m.name, fmt.Sprintf("%.2f", ms), fmt.Sprintf("%.1f", ns), m.cell("%.4f", func(r *result) float64 { return r.train.MeanLoss() }),
			m.cell("%.4f", testLoss), fmt.Sprintf("1/%.1f", m.ratio()))
		if i > 0 {
			mean, _ := m.spread(testLoss)
			cost.points = append(cost.points, plotter.XY{X: float64(spans[i-1]), Y: ms})
			loss.points = append(loss.points, plotter.XY{X: float64(spans[i-1]), Y: mean})
		}
	}
	if err := t.write(e.out); err != nil {
		return err
	}
	ticks := []float64{1, 10, 100, 1000}
	return e.writePlot("lifespan.png", func(w io.Writer) error {
		return writePanels(w, []panel{
			{title: "DCT Fig. 7 a: time of the codec", x: "life-span L", y: "ms a step", logX: true, ticks: ticks, lines: []line{cost}},
			{title: "DCT Fig. 7 b: loss", x: "life-span L", y: "test loss", logX: true, ticks: ticks, lines: []line{loss}},
		})
	})
}

// slims compares Slim-DP with plain and quantized pushes, and varies what it
// explores (Slim table 1, figures 3 and 4).
func slims(ctx context.Context, e *evaluation) error {
	s := pictures(e)
	slim := func(alpha, epsilon float64) variant {
		return variant{fmt.Sprintf("slim (%g, %g)", alpha, epsilon), []values.Rule{{Slim: &values.Slim{Alpha: alpha, Epsilon: epsilon, Rounds: 20}}}}
	}
	variants := []variant{{name: "plain"}, {"quantized, 8 bit", []values.Rule{{Quantize: 8}}},
		slim(0.3, 0.15), slim(0.2, 0.1), slim(0.5, 0.25), slim(0.3, 0.3), slim(0.3, 0),
		{"slim (0.5, 0.25), 8 bit", []values.Rule{{Slim: &values.Slim{Alpha: 0.5, Epsilon: 0.25, Rounds: 20}, Quantize: 8}}},
		{"threshold 99%", []values.Rule{{Threshold: 0.99}}}, {"threshold 99%, 8 bit", []values.Rule{{Threshold: 0.99, Quantize: 8}}}}
	all, err := s.measure(ctx, e, 40, variants)
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("%s (%d workers, %d seeds, %d steps; pulls as a worker sees them)", s.name, workers, e.seeds(), s.steps),
		head: []string{"codec", "test accuracy %", "against plain", "test loss", "pushes", "pulls", "bytes saved %"}}
	var curves []line
	for i := range all {
		m := &all[i]
		saved, _ := m.spread(func(r *result) float64 {
			return 100 * (1 - float64(r.pushed.encoded+r.pulled.encoded)/float64(r.pushed.plain+r.pulled.plain))
		})
		mean, _ := m.spread(testAccuracy)
		plain, _ := all[0].spread(testAccuracy)
		pulls, _ := m.spread(func(r *result) float64 { return r.pulled.ratio() })
		t.add(m.name, m.cell("%.2f", testAccuracy), fmt.Sprintf("%+.2f", mean-plain), m.cell("%.4f", testLoss), fmt.Sprintf("1/%.1f", m.ratio()), fmt.Sprintf("1/%.2f", pulls), fmt.Sprintf("%.1f", saved))
		curve := line{name: m.name}
		for k, at := range m.runs[0].curve {
			y, _ := m.spread(func(r *result) float64 { return 100 * r.curve[k].tally.Accuracy() })
			curve.points = append(curve.points, plotter.XY{X: float64(at.step), Y: y})
		}
		curves = append(curves, curve)
	}
	if err := t.write(e.out); err != nil {
		return err
	}
	return e.writePlot("slim.png", func(w io.Writer) error {
		return writePanels(w, []panel{
			{title: "Slim Fig. 4: exploration and exploitation", x: "step", y: "test accuracy %", lines: []line{curves[0], curves[2], curves[5], curves[6]}, floor: 50},
			{title: "Slim Fig. 3 and 5: codecs", x: "step", y: "test accuracy %", lines: []line{curves[0], curves[1], curves[2], curves[3], curves[4], curves[8]}, floor: 50},
		})
	})
}
