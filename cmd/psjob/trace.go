package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/recording"
)

// drawnSide is the side, in pixels, of the pictures that are drawn if none are given.
const drawnSide = 20

// newTraceCommand makes a recording of training that nobody ran: the uses of keys as
// they would have been, in the format of psidecar record. Strategies can so be
// compared on jobs of a size that no machine at hand can run, in seconds.
func newTraceCommand(e env) *cobra.Command {
	var kind, path, images, labels string
	var pictures int
	w := train.Wandering{Count: train.CountOptions{}}
	p := train.Pruning{}
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Generate a synthetic recording for psidecar simulate",
		Long: `Generate a synthetic recording for psidecar simulate.

pruning: a network learns images (--images and --labels in MNIST's format, or
images generated from the seed) and is pruned during training. wandering: every
worker has favorite keys, which change every --wander steps.`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			if path == "" {
				return usagef("--out FILE is needed")
			}
			var uses train.Trace
			var err error
			report := struct {
				recording.Totals
				*train.PruningReport
			}{}
			// The trace is lazy: nothing is computed before it is written below.
			switch kind {
			case "wandering":
				uses, err = w.Trace()
			case "pruning":
				p.Workers, p.Servers, p.Seed = w.Workers, w.Servers, w.Seed
				if p.Pictures, err = openPictures(images, labels, pictures, p.Seed); err != nil {
					return err
				}
				report.PruningReport = &train.PruningReport{}
				uses, err = p.Trace(report.PruningReport)
			default:
				return usagef("--kind %q: want wandering or pruning", kind)
			}
			if err != nil {
				return usageError{err}
			}
			if report.Totals, err = writeTrace(path, uses); err != nil {
				return fmt.Errorf("writing %s: %w", path, err)
			}
			return json.NewEncoder(e.stdout).Encode(report)
		},
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", "wandering", "kind of trace: wandering or pruning")
	f.StringVar(&path, "out", "", "output file")
	// For both kinds: the job's size and the seed. Pruning copies them from w.
	f.IntVar(&w.Workers, "workers", 8, "workers")
	f.IntVar(&w.Servers, "servers", 8, "servers")
	f.Uint64Var(&w.Seed, "seed", 1, "random seed; the same seed yields the same trace")
	// Wandering: what each worker uses, and how fast that changes.
	f.IntVar(&w.Steps, "steps", 2000, "wandering: steps per worker")
	f.IntVar(&w.Width, "value-length", 1, "wandering: floats per value")
	f.IntVar(&w.Count.Keys, "keys", 200_000, "wandering: number of keys")
	f.IntVar(&w.Count.Batch, "keys-per-step", 200, "wandering: keys that a worker uses per step")
	f.IntVar(&w.Count.Favourites, "favourites", 1000, "wandering: number of favorite keys of a worker at a time")
	f.Float64Var(&w.Count.Common, "common", 0.1, "wandering: share of a step's keys that are favorites of all workers")
	f.Float64Var(&w.Count.Skew, "skew", 1, "wandering: how strongly the first keys are preferred over the last")
	f.IntVar(&w.Count.Wander, "wander", 300, "wandering: number of steps after which a worker's favorites change")
	// Pruning: the pictures, the net and the schedule.
	f.StringVar(&images, "images", "", "pruning: images in MNIST's format, plain or compressed")
	f.StringVar(&labels, "labels", "", "pruning: labels of the images")
	f.IntVar(&pictures, "pictures", 4000, "pruning: number of images to generate if none are given")
	f.IntVar(&p.Hidden, "hidden", 32, "pruning: hidden units of the network")
	f.IntVar(&p.Batch, "batch", 16, "pruning: images per step of a worker")
	f.IntVar(&p.Snapshots, "snapshots", 30, "pruning: number of prunings")
	f.IntVar(&p.Rounds, "rounds", 4, "pruning: steps per worker between two prunings")
	f.Float64Var(&p.Sparsity, "sparsity", 0.95, "pruning: share of the weights dropped in the end")
	f.Float64Var(&p.Epsilon, "epsilon", 0.01, "pruning: smallest gradient that is pushed, relative to the root mean square of the gradients")
	f.Float64Var(&p.Own, "own", 0.8, "pruning: share of a worker's images that are of its own classes")
	f.Float64Var(&p.LearningRate, "learning-rate", 0.1, "pruning: step size")
	return cmd
}

// openPictures loads pictures, or draws n from the seed if no files are given, so
// that a test needs no download. All workers' samples are in one set, which
// train.Pruning divides among them by class.
func openPictures(images, labels string, n int, seed uint64) (*model.Images, error) {
	switch {
	case images != "" && labels != "":
		return model.LoadImages(images, labels, model.Share{Index: 0, Of: 1})
	case images != "" || labels != "":
		return nil, usagef("--images and --labels go together")
	case n < 1:
		return nil, usagef("--pictures %d: want 1 or more", n)
	}
	return model.DrawImages(n, drawnSide, seed), nil
}

// writeTrace runs the trace and writes its uses to a recording. Every use is recorded
// (one in one is sampled). After an error the file stays, incomplete; readers
// recognize it by its missing end.
func writeTrace(path string, uses train.Trace) (totals recording.Totals, err error) {
	f, err := os.Create(path)
	if err != nil {
		return totals, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w, err := recording.NewWriter(f, recording.Header{Version: "psjob trace", Host: "trace", SampledOneIn: 1})
	if err != nil {
		return totals, err
	}
	if err := uses(w.Add); err != nil {
		return totals, err
	}
	return w.Close(0, 0)
}
