package train

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/van"
)

// bench pushes and pulls scalar keys that are spread over the whole key space, again
// and again, as PS-lite's own benchmark does once, and checks the sums. The servers
// only add. Each worker has keys of its own, so that the sums are known without the
// others.
func (w *worker) bench(ctx context.Context) error {
	if err := w.configure(ctx, 1); err != nil {
		return err
	}
	rank := uint64(w.van.Rank())
	r := kv.Request{Keys: make([]uint64, w.Keys), Vals: make([]float32, w.Keys), Out: make([]float32, w.Keys)}
	for i := range r.Keys {
		// Evenly over all servers, and apart from other workers' keys by the rank.
		r.Keys[i] = math.MaxUint64/uint64(w.Keys)*uint64(i) + rank
		r.Vals[i] = float32(i%100 + 1)
	}
	// Each round is timed by itself, too: the first is slower, since it makes the
	// servers' keys.
	began := time.Now()
	for range w.Rounds {
		start := time.Now()
		if err := w.do(w.kv.Push(ctx, r))(ctx); err != nil {
			return err
		}
		w.report.PushSeconds = append(w.report.PushSeconds, since(start))
		start = time.Now()
		if err := w.do(w.kv.Pull(ctx, r))(ctx); err != nil {
			return err
		}
		w.report.PullSeconds = append(w.report.PullSeconds, since(start))
	}
	// The report is computed rather than counted: there is no access log.
	w.report.Steps, w.report.Seconds = w.Rounds, since(began)
	w.report.StepsPerSecond = float64(w.Rounds) / w.report.Seconds
	w.report.Keys = w.Keys
	w.report.Pushes, w.report.Pulls = int64(w.Keys*w.Rounds), int64(w.Keys*w.Rounds)
	w.report.PushBytes, w.report.PullBytes = 4*w.report.Pushes, 4*w.report.Pulls
	for i, v := range r.Out {
		// Beyond 2^16 rounds float32 would not hold the sums.
		if want := float32(w.Rounds) * r.Vals[i]; w.Rounds < 1<<16 && v != want {
			return fmt.Errorf("key %d is %v after %d rounds, want %v: %w", r.Keys[i], v, w.Rounds, want, errWrongSums)
		}
	}
	w.report.Checked = w.Keys
	return w.van.Barrier(ctx, van.Workers)
}
