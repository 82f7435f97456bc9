package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/van"
)

// errNotTheSum is the error of a job in which a pulled value is not the very one that
// the server must have.
var errNotTheSum = errors.New("unexpected value")

// dense has every worker pull a whole model in each step, with all requests in flight
// at once, and check each value to the last bit. In each step one worker, in turn,
// pushes what the step adds: random numbers of which all workers know the sums.
// Barriers keep the steps apart. Only one worker adds at a time, since sums of floats
// depend on their order.
func (w *worker) dense(ctx context.Context) error {
	width := max(1, w.Server.ValueLength)
	requests, err := w.denseRequests(width)
	if err != nil {
		return err
	}
	if err := w.configure(ctx, width); err != nil {
		return err
	}
	sums := make([][]float32, len(requests))
	began, longest := time.Now(), time.Duration(0)
	for step := range w.Steps {
		start := time.Now()
		for i := range requests {
			r := &requests[i]
			// All workers add what one of them pushes, so that each knows every value
			// of the server.
			addStep(r.Vals, w.Seed, uint64(step)<<32|uint64(i))
			sums[i] = slices.Grow(sums[i], len(r.Vals))[:len(r.Vals)]
			for j, v := range r.Vals {
				sums[i][j] += v
			}
		}
		// The barrier lets no worker pull before the step's push has been answered,
		// and the one at the end of the step no worker push before all have pulled.
		if step%w.van.Config().Workers == w.van.Rank() {
			if err := w.all(ctx, requests, w.kv.Push); err != nil {
				return fmt.Errorf("step %d: push: %w", step, err)
			}
		}
		if err := w.van.Barrier(ctx, van.Workers); err != nil {
			return err
		}
		pulls, wants := requests, sums
		if w.DensePart < 1 {
			pulls, wants = w.parts(requests, sums, step)
		}
		if err := w.all(ctx, pulls, w.kv.Pull); err != nil {
			return fmt.Errorf("step %d: pull: %w", step, err)
		}
		for i := range pulls {
			for j, v := range pulls[i].Out {
				if math.Float32bits(v) != math.Float32bits(wants[i][j]) {
					return fmt.Errorf("step %d: value %d of the request that begins with key %d is %v, want %v: %w", step, j, pulls[i].Keys[0], v, wants[i][j], errNotTheSum)
				}
			}
			// A value that does not arrive in the next step must not look like one
			// that did.
			clear(pulls[i].Out)
			w.report.Checked += len(pulls[i].Keys)
		}
		if err := w.van.Barrier(ctx, van.Workers); err != nil {
			return err
		}
		longest = max(longest, time.Since(start))
	}
	w.report.Steps, w.report.Seconds, w.report.LongestStep = w.Steps, since(began), longest.Seconds()
	w.report.StepsPerSecond = float64(w.Steps) / w.report.Seconds
	return nil
}

// parts returns requests for DensePart of the keys of each, rounded up, which this worker chooses in
// this step, and the values that must come.
func (w *worker) parts(requests []kv.Request, sums [][]float32, step int) (pulls []kv.Request, wants [][]float32) {
	rng := rand.New(rand.NewPCG(w.Seed, uint64(step)<<32|uint64(w.van.Rank())))
	for i, r := range requests {
		width := len(r.Vals) / len(r.Keys)
		chosen := rng.Perm(len(r.Keys))[:int(math.Ceil(w.DensePart*float64(len(r.Keys))))]
		slices.Sort(chosen)
		var pull kv.Request
		var want []float32
		for _, k := range chosen {
			pull.Keys = append(pull.Keys, r.Keys[k])
			want = append(want, sums[i][k*width:(k+1)*width]...)
		}
		pull.Out = make([]float32, len(want))
		pulls, wants = append(pulls, pull), append(wants, want)
	}
	return pulls, wants
}

// denseRequests returns the requests of a step: Count.Keys keys of width values, the
// same for all workers, Count.Batch in each request.
func (w *worker) denseRequests(width int) (all []kv.Request, err error) {
	keys := make([]uint64, w.Count.Keys)
	for i := range keys {
		if keys[i], err = w.keys.Key(uint64(i)); err != nil {
			return nil, err
		}
	}
	slices.Sort(keys)
	for part := range slices.Chunk(keys, w.Count.Batch) {
		n := len(part) * width
		all = append(all, kv.Request{Keys: part, Vals: make([]float32, n), Out: make([]float32, n)})
	}
	return all, nil
}

// all makes requests that are in flight together, and waits for their answers. A
// dense layer of a real model is pulled like this: the servers answer while later
// requests are still being sent.
func (w *worker) all(ctx context.Context, requests []kv.Request, do func(context.Context, kv.Request) (int32, error)) error {
	var waits []int32
	for _, r := range requests {
		ts, err := do(ctx, r)
		if err != nil {
			return err
		}
		waits = append(waits, ts)
	}
	for _, ts := range waits {
		if err := w.kv.Wait(ctx, ts); err != nil {
			return err
		}
	}
	return nil
}

// addStep fills values with what a step adds to those of a request: numbers in [0, 1)
// with as many random bits as a float32 has, so that a lossless codec finds nothing
// in them to shorten.
func addStep(values []float32, seed, number uint64) {
	rng := rand.NewPCG(seed, number)
	for i := 0; i < len(values); i += 2 {
		v := rng.Uint64()
		values[i] = float32(v>>40) / (1 << 24)
		if i+1 < len(values) {
			values[i+1] = float32(v&(1<<24-1)) / (1 << 24)
		}
	}
}

// checkDense returns the first fault of the options that dense depends on.
func (o Options) checkDense() error {
	switch {
	case o.Server.Rule != "add":
		return fmt.Errorf("--rule %s: dense requires add, whose sums are known", o.Server.Rule)
	case o.Steps < 1:
		return fmt.Errorf("--steps %d: dense wants 1 or more", o.Steps)
	case !(o.DensePart > 0 && o.DensePart <= 1):
		return fmt.Errorf("--dense-part %v: want above 0 to 1", o.DensePart)
	case o.Async:
		return errors.New("--async: not with dense, which must wait for the other workers to know the expected values")
	case o.Count.Keys < 1 || o.Count.Batch < 1:
		return fmt.Errorf("--count-keys %d, --count-batch %d: want 1 or more", o.Count.Keys, o.Count.Batch)
	}
	return nil
}
