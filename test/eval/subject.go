package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ulikunitz/xz"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// workers is how many workers share the training data in the codecs' evaluations.
const workers = 4

// A subject is a model on a data set, to be trained again and again. load returns the model
// with a share of the training or test data; seed is of its initial values. It is called by
// several goroutines at once.
type subject struct {
	name     string
	steps    int
	quick    int              // steps with --quick; 0: a quarter of all
	batch    int              // samples of a worker's step
	settings kv.StoreSettings // of the server
	momentum float32          // see [model.Momentum]
	decay    float64          // see [session.rate]
	load     func(ctx context.Context, share model.Share, test bool, seed uint64) (model.Model, error)
}

// session prepares a run of the subject: it loads a share of the training data for each worker,
// and all test data.
func (s *subject) session(ctx context.Context, seed uint64, rules []values.Rule) (*session, error) {
	run := &session{settings: s.settings, batch: s.batch, steps: s.steps, seed: seed, momentum: s.momentum, decay: s.decay, rules: rules}
	for i := range workers {
		m, err := s.load(ctx, model.Share{Index: i, Of: workers}, false, seed)
		if err != nil {
			return nil, err
		}
		run.models = append(run.models, m)
	}
	var err error
	run.test, err = s.load(ctx, model.Share{Index: 0, Of: 1}, true, seed)
	return run, err
}

// split writes the lines of a compressed text data set to two files of this run, every fifth to
// the one for tests, and returns their paths.
func split(e *evaluation, name string) (train, test string, err error) {
	text, err := e.unpack(name)
	if err != nil {
		return "", "", err
	}
	return e.writeSplit(name, text)
}

// unpack returns the content of a compressed data set.
func (e *evaluation) unpack(name string) ([]byte, error) {
	in, err := os.Open(filepath.Join(e.datasets, name))
	if err != nil {
		return nil, fmt.Errorf("a data set: %w", err)
	}
	defer in.Close()
	r, err := xz.NewReader(bufio.NewReader(in))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	all, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return all, nil
}

// unpacked returns the path of a file of this run with a compressed data set's content. It is
// written once: unpacking takes longer than everything else that is done with pictures.
func (e *evaluation) unpacked(name string) (string, error) {
	path := filepath.Join(e.scratch, strings.TrimSuffix(name, ".xz"))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	content, err := e.unpack(name)
	if err != nil {
		return "", err
	}
	// Several goroutines may do so at a time; each file is whole before it has its name.
	f, err := os.CreateTemp(e.scratch, "unpacked-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return "", fmt.Errorf("unpacking %s: %w", name, err)
	}
	// Two that have unpacked the same at once replace each other's file by an equal one.
	return path, os.Rename(f.Name(), path)
}

// writeSplit writes lines to two files of this run, named after name, and every fifth to the
// one for tests.
func (e *evaluation) writeSplit(name string, text []byte) (train, test string, err error) {
	var parts [2]bytes.Buffer
	n := 0
	for line := range bytes.Lines(text) {
		at := 0
		if n++; n%5 == 0 {
			at = 1
		}
		parts[at].Write(line)
	}
	train, test = filepath.Join(e.scratch, name+".train"), filepath.Join(e.scratch, name+".test")
	for i, path := range []string{train, test} {
		if err := os.WriteFile(path, parts[i].Bytes(), 0o644); err != nil {
			return "", "", err
		}
	}
	return train, test, nil
}

// keys returns the map that spreads ids over the key space, as psjob does by default.
func keys() dataset.KeyMap {
	m, err := dataset.ParseKeyMap("spread")
	if err != nil {
		panic(err) // a constant
	}
	return m
}

// The recommender's nets: small ones that train in no time, DLRM's own for data of this format
// (large), and those with half as many units.
var (
	small  = model.RecommendShape{Embedding: 16, Bottom: []int{64}, Top: []int{64}}
	medium = model.RecommendShape{Embedding: 16, Bottom: []int{256, 128, 32}, Top: []int{256, 128}}
	large  = model.RecommendShape{Embedding: 16, Bottom: []int{512, 256, 64}, Top: []int{512, 256}}
)

// recommender returns DCT's model on rows in the format of Criteo Kaggle.
func recommender(e *evaluation, name string, shape model.RecommendShape) (*subject, error) {
	train, test, err := split(e, "criteo-raw-7k.csv.xz")
	if err != nil {
		return nil, err
	}
	return &subject{
		name: name + " recommender, criteo-raw-7k", steps: 360, batch: 32, settings: kv.StoreSettings{Rule: "sgd", Synchronous: true, LearningRate: 0.1, ValueLength: 16},
		load: func(ctx context.Context, share model.Share, isTest bool, seed uint64) (model.Model, error) {
			path := train
			if isTest {
				path = test
			}
			set, err := model.LoadClicks(ctx, path, share, keys(), 10_000)
			if err != nil {
				return nil, err
			}
			spread := keys()
			return model.NewRecommend(set, shape, 1<<16, seed, spread.Key)
		},
	}, nil
}

// regression returns logistic regression on a libsvm set. It completes settings.
func regression(e *evaluation, file string, steps, batch int, settings kv.StoreSettings) (*subject, error) {
	train, test, err := split(e, file)
	if err != nil {
		return nil, err
	}
	settings.Synchronous, settings.ValueLength = true, 1
	return &subject{
		name: fmt.Sprintf("logistic regression by %s, %s", settings.Rule, file), steps: steps, batch: batch, settings: settings,
		load: func(ctx context.Context, share model.Share, isTest bool, _ uint64) (model.Model, error) {
			path := train
			if isTest {
				path = test
			}
			set, err := model.LoadSparse(ctx, path, share, keys(), true)
			if err != nil {
				return nil, err
			}
			return model.NewLinear(set), nil
		},
	}, nil
}

// heavy returns the pictures' model with momentum and decay of weights on the servers, so that
// each step changes every value.
func heavy(e *evaluation) *subject {
	s := pictures(e)
	s.name += ", momentum and decay on the server"
	s.settings.Momentum, s.settings.L2, s.momentum = float64(s.momentum), 1e-4, 0
	return s
}

// pictures returns an image model of one hidden layer, trained with momentum on half of the
// training pictures while the learning rate falls to nothing.
func pictures(e *evaluation) *subject { return pictureNet(e, 4000, 64) }

// pictureNet returns such a model with these hidden layers. With --quick it learns from half as
// many pictures, and is tested with a fifth.
func pictureNet(e *evaluation, steps int, hidden ...int) *subject {
	return &subject{
		name: fmt.Sprintf("MLP 784-%s-10, pictures", strings.Trim(strings.ReplaceAll(fmt.Sprint(hidden), " ", "-"), "[]")), steps: steps, quick: 300, batch: 16, momentum: 0.9, decay: 1,
		settings: kv.StoreSettings{Rule: "sgd", Synchronous: true, LearningRate: 0.02, ValueLength: 1},
		load: func(_ context.Context, s model.Share, isTest bool, seed uint64) (model.Model, error) {
			set, part, quick := "train", 2, 4 // one picture of so many
			if isTest {
				set, part, quick = "t10k", 1, 5
			}
			if e.quick {
				part = quick
			}
			s.Of *= part
			images, err := e.unpacked(set + "-images-idx3-ubyte.xz")
			if err != nil {
				return nil, err
			}
			labels, err := e.unpacked(set + "-labels-idx1-ubyte.xz")
			if err != nil {
				return nil, err
			}
			shown, err := model.LoadImages(images, labels, s)
			if err != nil {
				return nil, err
			}
			spread := keys()
			return model.NewImage(shown, hidden, 1<<16, seed, spread.Key)
		},
	}
}
