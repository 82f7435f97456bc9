package train

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/cmd/psjob/van"
)

// train runs the training loop.
//
// Synchronous training is bulk-synchronous: all workers' gradients of a step are in
// before any worker pulls for the next. With a rule that takes gradients one barrier
// a step is enough, because the servers keep a step's sum apart until then (see
// package kv); the request's head is the step. With a rule that adds, workers push
// differences, and a second barrier keeps a fast worker's push from a slow worker's
// pull.
//
// Asynchronous training has no barriers: a worker pulls whatever the others have
// pushed by then.
func (w *worker) train(ctx context.Context) error {
	config := w.van.Config()
	m, width, err := w.load(ctx, w.Data, w.Labels, model.Share{Index: w.van.Rank(), Of: config.Workers})
	if err != nil {
		return err
	}
	w.report.Samples = m.Samples()
	if err := w.configure(ctx, width); err != nil {
		return err
	}
	steps, err := w.steps(ctx, m.Samples())
	if err != nil {
		return err
	}
	if err := w.loop(ctx, m, steps); err != nil {
		return err
	}
	return w.evaluate(ctx, m, int32(steps))
}

// steps returns how many steps each worker makes: in synchronous training the same
// number for all, that of the worker with the most samples, since a barrier waits for
// everybody.
func (w *worker) steps(ctx context.Context, own int) (int, error) {
	if w.Steps > 0 {
		return w.Steps, nil
	}
	most := own
	if !w.Async && w.van.Config().Workers > 1 {
		// Workers' shares may differ by a sample, or by a lot if the data was
		// partitioned. Those with fewer begin their next epoch earlier.
		total, ok, err := w.total(ctx, share{Name: "samples", Most: own})
		if err != nil {
			return 0, err
		}
		if !ok {
			return 0, fmt.Errorf("the first server does not add up how many samples the workers have: set --steps, or train with --async")
		}
		most = total.Most
	}
	steps := w.Epochs * ((most + w.Batch - 1) / w.Batch)
	if steps >= math.MaxInt32 {
		return 0, fmt.Errorf("%d steps: at most %d", steps, math.MaxInt32-1)
	}
	return steps, nil
}

// loop makes the steps: pull the parameters of a batch, compute the gradient, push
// it, and wait for the others. The slices of parameters and gradients are reused from
// step to step, which is safe because each push is answered before the next step
// begins.
func (w *worker) loop(ctx context.Context, m model.Model, steps int) error {
	// Each worker has an order of its own, the same in each run: with synchronous
	// training the result is, too.
	nextBatch := Batches(m.Samples(), w.Batch, w.Seed, w.van.Rank())
	divisor := w.Batch
	if !w.Async {
		divisor *= w.van.Config().Workers
	}
	// A push is the mean over the batches of all workers that are added up in a step,
	// so that the learning rate does not depend on how many they are. Rules that add
	// get the whole step of SGD, with its sign.
	scale := 1 / float32(divisor)
	if !w.Server.TakesGradients() {
		scale *= -float32(w.Server.LearningRate)
	}
	began, logged := time.Now(), time.Now()
	// One tally of everything, and its state at the last report.
	var tally, atLog, atMark model.Tally
	var params, grads [][]float32
	momentum := model.Momentum{Factor: float32(w.Momentum)}
	for step := range steps {
		started := time.Now()
		batch := nextBatch()
		// These keys are all that the worker needs to know of the model in this step.
		groups := m.Groups(batch)
		var err error
		if params, err = w.pull(ctx, groups, int32(step), params); err != nil {
			return err
		}
		grads = shapeLike(grads, params)
		m.Gradient(batch, params, grads, &tally)
		for _, g := range grads {
			for i := range g {
				g[i] *= scale
			}
		}
		momentum.Apply(grads)
		if err := w.push(ctx, groups, int32(step), grads); err != nil {
			return err
		}
		w.report.LongestStep = max(w.report.LongestStep, since(started))
		if w.CurveEvery > 0 && (step+1)%w.CurveEvery == 0 {
			w.report.Curve = append(w.report.Curve, Mark{step + 1, since(began), tally.LossSince(&atMark)})
		}
		if w.due(&logged, step+1, steps) {
			w.logger.Info("training", "rank", w.van.Rank(), "step", step+1, "of", steps, "loss", tally.LossSince(&atLog))
		}
	}
	w.report.Steps, w.report.Seconds = steps, since(began)
	w.report.StepsPerSecond = float64(steps) / w.report.Seconds
	return w.van.Barrier(ctx, van.Workers)
}

// due reports whether a worker logs after that many steps: when LogEvery is over, and
// when all are made.
func (w *worker) due(logged *time.Time, step, of int) bool {
	if w.LogEvery == 0 || time.Since(*logged) < w.LogEvery && step < of {
		return false
	}
	*logged = time.Now()
	return true
}

// pull fetches the parameters of groups into lists whose memory is that of reuse. All
// groups are in flight together.
func (w *worker) pull(ctx context.Context, groups []model.Group, step int32, reuse [][]float32) ([][]float32, error) {
	params := slices.Grow(reuse[:0], len(groups))[:len(groups)]
	stamps := make([]int32, len(groups))
	for g, group := range groups {
		n := group.Values()
		params[g] = slices.Grow(params[g][:0], n)[:n]
		var err error
		// The head has the step, so that a synchronous server settles the sums of the
		// step before.
		stamps[g], err = w.kv.Pull(ctx, kv.Request{Keys: group.Keys, Lens: group.Lens, Out: params[g], Head: w.head(step)})
		if err != nil {
			return nil, fmt.Errorf("pull at step %d: %w", step, err)
		}
	}
	// All parts are in flight by now; waiting in any order takes as long as the
	// slowest.
	for _, ts := range stamps {
		if err := w.kv.Wait(ctx, ts); err != nil {
			return nil, fmt.Errorf("pull at step %d: %w", step, err)
		}
	}
	return params, nil
}

// push sends the gradients and, in synchronous training, waits for the others.
func (w *worker) push(ctx context.Context, groups []model.Group, step int32, grads [][]float32) error {
	// A slower worker may not have pulled for this step yet, and must not see what is
	// pushed for the next.
	if !w.Async && !w.Server.TakesGradients() {
		if err := w.van.Barrier(ctx, van.Workers); err != nil {
			return err
		}
	}
	stamps := make([]int32, len(groups))
	for g, group := range groups {
		var err error
		stamps[g], err = w.kv.Push(ctx, kv.Request{Keys: group.Keys, Lens: group.Lens, Vals: grads[g], Head: w.head(step)})
		if err != nil {
			return fmt.Errorf("push at step %d: %w", step, err)
		}
	}
	for _, ts := range stamps {
		if err := w.kv.Wait(ctx, ts); err != nil {
			return fmt.Errorf("push at step %d: %w", step, err)
		}
	}
	if w.Async {
		return nil
	}
	return w.van.Barrier(ctx, van.Workers)
}

// head is the request's number for the server: the step, if the rule needs it.
func (w *worker) head(step int32) int32 {
	if w.settings(1).Synchronous {
		return step
	}
	return 0
}

// shapeLike returns lists as long as those of params, in the memory of grads.
func shapeLike(grads, params [][]float32) [][]float32 {
	grads = slices.Grow(grads[:0], len(params))[:len(params)]
	for g := range params {
		grads[g] = slices.Grow(grads[g][:0], len(params[g]))[:len(params[g])]
	}
	return grads
}

// evaluate scores all training samples with the final parameters, and the first
// worker the test data as well. With servers that are not psjob's the figures are of
// this worker's samples alone.
func (w *worker) evaluate(ctx context.Context, m model.Model, step int32) error {
	// All pushes are in: the loop ends with a barrier.
	own, err := w.score(ctx, m, step)
	if err != nil {
		return fmt.Errorf("scoring the training data: %w", err)
	}
	total, all, err := w.total(ctx, share{Name: "train", Tally: own})
	if err != nil {
		return err
	}
	tally := own
	if all {
		tally = total.Tally
	}
	w.report.AllWorkers = all
	w.report.Loss, w.report.Accuracy, w.report.AUC = figures(tally)
	// All workers would get the same figures for the test data.
	if w.Test == "" || w.van.Rank() != 0 {
		return nil
	}
	labels := ""
	if w.Labels != "" {
		return fmt.Errorf("--test with --labels: name both files as MNIST does, so that the labels are found next to the images")
	}
	test, _, err := w.load(ctx, w.Test, labels, model.Share{Index: 0, Of: 1})
	if err != nil {
		return fmt.Errorf("test data: %w", err)
	}
	if tally, err = w.score(ctx, test, step); err != nil {
		return fmt.Errorf("scoring the test data: %w", err)
	}
	w.report.TestLoss, w.report.TestAccuracy, w.report.TestAUC = figures(tally)
	return nil
}

// figures returns loss, accuracy and AUC, nil if they do not exist or are not finite,
// which JSON has no numbers for.
func figures(t model.Tally) (loss, accuracy, auc *float64) {
	number := func(v float64) *float64 {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil
		}
		return &v
	}
	return number(t.MeanLoss()), number(t.Accuracy()), number(t.AUC())
}

// shuffle hands out samples in a new random order in each epoch.
type shuffle struct {
	order  []int32
	batch  []int32
	at     int
	random *rand.Rand
}

func newShuffle(n int, seed, stream uint64) *shuffle {
	s := &shuffle{order: make([]int32, n), at: n, random: rand.New(rand.NewPCG(seed, stream))}
	for i := range s.order {
		s.order[i] = int32(i)
	}
	return s
}

// Batches returns a function that returns the samples of each step of the worker of a rank, in turn.
// A batch is valid until the next call.
func Batches(samples, batch int, seed uint64, rank int) func() []int32 {
	s := newShuffle(samples, seed, uint64(rank))
	return func() []int32 { return s.nextSamples(batch) }
}

// nextSamples returns the next n samples, valid until the next call. A batch may have
// the end of an epoch and the beginning of the next.
func (s *shuffle) nextSamples(n int) []int32 {
	s.batch = s.batch[:0]
	for len(s.batch) < n {
		if s.at == len(s.order) {
			s.random.Shuffle(len(s.order), func(i, j int) { s.order[i], s.order[j] = s.order[j], s.order[i] })
			s.at = 0
		}
		take := min(n-len(s.batch), len(s.order)-s.at)
		s.batch = append(s.batch, s.order[s.at:s.at+take]...)
		s.at += take
	}
	return s.batch
}
