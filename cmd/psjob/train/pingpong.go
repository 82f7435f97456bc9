package train

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/van"
)

// pingPong has each worker pull all keys, a double each, and push a difference for each of
// them, one request after the other, without waiting for other workers: what asynchronous
// solvers of dense linear models do. With the key map identity one server has all keys.
//
// Differences are multiples of 2^-40 below 2^-8, so sums of them are exact in any order and
// every worker knows what they must be at the end.
func (w *worker) pingPong(ctx context.Context) error {
	if err := w.configure(ctx, 2); err != nil {
		return err
	}
	r := kv.Request{Doubles: true, Vals: make([]float32, 2*w.Count.Keys), Out: make([]float32, 2*w.Count.Keys)}
	for id := range uint64(w.Count.Keys) {
		key, err := w.keys.Key(id)
		if err != nil {
			return err
		}
		r.Keys = append(r.Keys, key)
	}
	slices.Sort(r.Keys)
	began := time.Now()
	own := w.differences(w.van.Rank())
	for range w.Steps {
		if err := w.do(w.kv.Pull(ctx, r))(ctx); err != nil {
			return err
		}
		for k := range r.Keys {
			kv.SetDouble(r.Vals[2*k:], own())
		}
		if err := w.do(w.kv.Push(ctx, r))(ctx); err != nil {
			return err
		}
	}
	w.report.Steps, w.report.Seconds = w.Steps, since(began)
	w.report.StepsPerSecond = float64(w.Steps) / w.report.Seconds
	// All pushes have been answered when all workers are here.
	if err := w.van.Barrier(ctx, van.Workers); err != nil {
		return err
	}
	if err := w.do(w.kv.Pull(ctx, r))(ctx); err != nil {
		return err
	}
	sums := make([]float64, len(r.Keys))
	for rank := range w.van.Config().Workers {
		next := w.differences(rank)
		for range w.Steps {
			for k := range sums {
				sums[k] += next()
			}
		}
	}
	for k, sum := range sums {
		if got := kv.Double(r.Out[2*k:]); got != sum {
			return fmt.Errorf("key %d is %v, want %v: %w", r.Keys[k], got, sum, errWrongSums)
		}
	}
	w.report.Checked = len(sums)
	return w.van.Barrier(ctx, van.Workers)
}

// differences returns a function that returns what a worker adds, number by number.
func (w *worker) differences(rank int) func() float64 {
	random := rand.NewPCG(w.Seed, uint64(rank))
	return func() float64 { return float64(int64(random.Uint64())>>31) / (1 << 40) }
}

// checkPingPong returns the first fault of the options that pingpong depends on.
func (o Options) checkPingPong() error {
	switch {
	case o.Server.Rule != "add" || o.Server.ValueLength != 2:
		return errors.New("--rule, --value-length: pingpong adds one double for each key")
	case o.Steps < 1 || o.Steps > 1<<16:
		return fmt.Errorf("--steps %d: pingpong wants 1 to 65536, whose sums are exact", o.Steps)
	case o.Count.Keys < 1:
		return fmt.Errorf("--count-keys %d: want 1 or more", o.Count.Keys)
	}
	return nil
}
