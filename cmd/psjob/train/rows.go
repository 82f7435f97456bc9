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
	"github.com/psidecar/psidecar/planner/dataset"
)

// RowsOptions describe the workload that pulls rows and pushes gradients for them.
type RowsOptions struct {
	// Sparsity is the share of a row's values that may be left out on the way, the
	// smallest, and then of the row's next gradient as well.
	Sparsity float64
}

// rower is a worker's rows, of keys that no other worker has, with the values that
// the server must have for them.
type rower struct {
	keys     []uint64 // ascending
	width    int
	sparsity float64
	has      []float32 // the server's values, row by row
	cut      int       // rows that arrived without their smallest values
}

// newRower gives a worker every workers-th id, so that no two share a key.
func newRower(o Options, rank, workers, width int, keyMap *dataset.KeyMap) (*rower, error) {
	r := &rower{width: width, sparsity: o.Rows.Sparsity, has: make([]float32, o.Count.Keys*width)}
	for i := range o.Count.Keys {
		key, err := keyMap.Key(uint64(i*workers + rank))
		if err != nil {
			return nil, err
		}
		r.keys = append(r.keys, key)
	}
	slices.Sort(r.keys)
	return r, nil
}

// row returns the values that the server must have for key i.
func (r *rower) row(i int) []float32 { return r.has[i*r.width : (i+1)*r.width] }

// errWrongRow is the error of a job in which a row is neither whole nor without its
// smallest values.
var errWrongRow = errors.New("a row is neither the expected one nor the largest of its values")

// largest returns which values of a row are its largest, all of them for a row of
// zeros. It sorts, where the codec selects: the two must agree.
func largest(row []float32, sparsity float64) []bool {
	var sorted []float64
	for _, v := range row {
		sorted = append(sorted, math.Abs(float64(v)))
	}
	slices.Sort(sorted)
	n := len(row)
	// As package rows has it: as many values stay below as the sparsity says, but
	// never all of them.
	tau := sorted[min(int(math.Ceil(float64(n)*sparsity)), n-1)]
	mask := make([]bool, n)
	for i, v := range row {
		m := math.Abs(float64(v))
		mask[i] = sorted[n-1] == 0 || m >= tau && m > 0
	}
	return mask
}

// check compares a pulled row with what the server must have, and returns which
// values of the next gradient the server will get.
func (r *rower) check(i int, got []float32) ([]bool, error) {
	want, mask := r.row(i), largest(r.row(i), r.sparsity)
	whole, part := true, true
	for j, v := range got {
		// A row may arrive whole, or exactly its largest values and zeros for the
		// others. Anything between is an error.
		whole = whole && v == want[j]
		part = part && (v == want[j] || v == 0 && !mask[j])
		part = part && (mask[j] || v == 0)
	}
	// A row that could be either, since nothing had to be left out, is taken for one
	// that was cut: the mask says the same then.
	switch {
	case !whole && !part:
		return nil, fmt.Errorf("key %d: %w: got %v of %v", r.keys[i], errWrongRow, got, want)
	case !part:
		for j := range mask {
			mask[j] = true
		}
	case !whole:
		r.cut++
	}
	return mask, nil
}

// rows pushes initial values, which must arrive whole, then pulls rows and pushes
// gradients for them in turns. It checks each row against what the server must have
// if the gradient for a row that arrived without its smallest values was cut in the
// same places. In the end it pulls all rows at once, which must come whole.
func (w *worker) rows(ctx context.Context) error {
	width := max(1, w.Server.ValueLength)
	r, err := newRower(w.Options, w.van.Rank(), w.van.Config().Workers, width, &w.keys)
	if err != nil {
		return err
	}
	if err := w.configure(ctx, width); err != nil {
		return err
	}
	// Normally distributed values: ties, which would leave open which values of a row
	// are the largest, hardly ever occur.
	rng := rand.New(rand.NewPCG(w.Seed, uint64(w.van.Rank())))
	for i := range r.has {
		r.has[i] = float32(rng.NormFloat64())
	}
	// One push of all keys. A codec must not take it for a gradient: nothing was
	// pulled yet.
	if err := w.do(w.kv.Push(ctx, kv.Request{Keys: r.keys, Vals: r.has}))(ctx); err != nil {
		return fmt.Errorf("pushing initial values: %w", err)
	}
	began := time.Now()
	for step := range w.Steps {
		// Others each time, ascending as a request's keys must be.
		chosen := rng.Perm(len(r.keys))[:w.Count.Batch]
		slices.Sort(chosen)
		if err := w.rowStep(ctx, r, chosen, rng); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	w.report.Steps, w.report.Seconds, w.report.CutRows = w.Steps, since(began), r.cut
	w.report.StepsPerSecond = float64(w.Steps) / w.report.Seconds
	// A pull so much larger than the others must not be cut: it looks like a worker
	// that saves its model.
	all := kv.Request{Keys: r.keys, Out: make([]float32, len(r.has))}
	if err := w.do(w.kv.Pull(ctx, all))(ctx); err != nil {
		return fmt.Errorf("pulling all rows: %w", err)
	}
	for i, v := range all.Out {
		if v != r.has[i] {
			return fmt.Errorf("key %d, value %d is %v at the end: %w, which is %v", r.keys[i/width], i%width, v, errWrongRow, r.has[i])
		}
	}
	w.report.Checked = len(r.keys)
	return nil
}

// rowStep pulls rows, checks them, and pushes gradients.
func (w *worker) rowStep(ctx context.Context, r *rower, chosen []int, rng *rand.Rand) error {
	var keys []uint64
	for _, i := range chosen {
		keys = append(keys, r.keys[i])
	}
	n := len(keys) * r.width
	q := kv.Request{Keys: keys, Vals: make([]float32, n), Out: make([]float32, n)}
	if err := w.do(w.kv.Pull(ctx, q))(ctx); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	for at, i := range chosen {
		// From here on the server is assumed to have what the mask lets pass. The
		// next pull of this row proves it.
		mask, err := r.check(i, q.Out[at*r.width:(at+1)*r.width])
		if err != nil {
			return err
		}
		for j, goes := range mask {
			g := float32(rng.NormFloat64())
			q.Vals[at*r.width+j] = g
			if goes {
				r.row(i)[j] += g
			}
		}
	}
	if err := w.do(w.kv.Push(ctx, q))(ctx); err != nil {
		return fmt.Errorf("push: %w", err)
	}
	return nil
}
