package train

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/planner/dataset"
)

// exact is the number up to which float32 holds every whole number.
const exact = 1 << 24

// A counter says what each worker pushes at each step. It is a function of the
// options alone, so that every worker knows the sums of all, and a lost, repeated or
// changed push shows as a wrong sum. Only the last four fields are a worker's own
// state.
type counter struct {
	CountOptions
	seed   uint64
	keys   []uint64  // by id
	byKey  []int32   // ids in the order of their keys
	place  []int32   // by id: its index in byKey
	favour []float64 // by id: how much all ids up to it are preferred, summed
	guide  []int32   // where in favour to look, by what was drawn; see find
	chosen []uint32  // by id: the drawing that it was last chosen in
	drawn  uint32    // drawings so far
	ids    []int32
	ended  bool // this worker has announced the number of the last step
	reuses bool // vals and out may be reused once a request is answered
	vals   []float32
	out    []float32
}

// newCounter computes the keys of all ids, their order and the distribution from
// which they are drawn.
func newCounter(o CountOptions, seed uint64, keyMap *dataset.KeyMap) (*counter, error) {
	c := &counter{CountOptions: o, seed: seed, keys: make([]uint64, o.Keys), byKey: make([]int32, o.Keys),
		place: make([]int32, o.Keys), favour: make([]float64, o.Keys), chosen: make([]uint32, o.Keys)}
	sum := 0.0
	for id := range c.keys {
		// Ids are numbered by popularity; the key map decides where on the key space,
		// and so on which server, popular ones are.
		key, err := keyMap.Key(uint64(id))
		if err != nil {
			return nil, err
		}
		c.keys[id], c.byKey[id] = key, int32(id)
		// A Zipf distribution as a running sum.
		sum += math.Pow(float64(id+1), -o.Skew)
		c.favour[id] = sum
	}
	c.prepareGuide()
	// Keys differ, so that no third case is needed.
	slices.SortFunc(c.byKey, func(a, b int32) int {
		if c.keys[a] < c.keys[b] {
			return -1
		}
		return 1
	})
	for at, id := range c.byKey {
		c.place[id] = int32(at)
	}
	return c, nil
}

// CountKeys returns what the workload count uses: the keys of each worker's step,
// ascending. The list is valid until the next call.
func CountKeys(o CountOptions, seed uint64, keyMap *dataset.KeyMap) (func(rank, step int) []uint64, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	c, err := newCounter(o, seed, keyMap)
	if err != nil {
		return nil, err
	}
	var keys []uint64
	return func(rank, step int) []uint64 {
		keys = keys[:0]
		for _, id := range c.step(rank, step) {
			keys = append(keys, c.keys[id])
		}
		return keys
	}, nil
}

// value is what a push adds to each value of id at a step, a whole number.
func (c *counter) value(id int32, step int) float32 {
	return float32((step+int(id))%cmp.Or(c.Most, 3) + 1)
}

// width returns how many values id has.
func (c *counter) width(id int32, each int) int {
	if c.Lens {
		return int(id)%4 + 1
	}
	return each
}

// totals returns the sums of all workers' pushes, by id. It plays all steps of all
// workers again, which takes about as long as drawing their keys did; nothing that
// happened in the job enters it.
func (c *counter) totals(workers, steps int) ([]int64, error) {
	sums := make([]int64, c.Keys)
	for rank := range workers {
		for step := range steps {
			for _, id := range c.drawIDs(rank, step) {
				sums[id] += int64(c.value(id, step))
			}
		}
	}
	for id, sum := range sums {
		if sum > exact {
			return nil, fmt.Errorf("id %d sums to %d, beyond the integers that float32 represents exactly (%d): use fewer steps or more keys", id, sum, exact)
		}
	}
	return sums, nil
}

// checkCounts pushes whole numbers, pulls after each push, and at the end compares
// all sums with what they must be. While it runs, a value must never be less than
// what this worker pushed itself, nor less than what it saw before: even while keys
// move between servers no worker may see time run backward.
func (w *worker) checkCounts(ctx context.Context) error {
	c, err := newCounter(w.Count, w.Seed, &w.keys)
	if err != nil {
		return err
	}
	// With PS_RESEND a repetition may be sent after the answer, from the same memory.
	c.reuses = !w.van.Config().Resend
	each := max(1, w.Server.ValueLength)
	if err := w.configure(ctx, each); err != nil {
		return err
	}
	// As many steps as it takes a worker to use about all keys once, times the
	// epochs.
	steps := w.Steps
	if steps == 0 {
		steps = w.Epochs * ((c.Keys + c.Batch - 1) / c.Batch)
	}
	// By id: the sum of this worker's pushes, and the value that it saw last, below
	// which the next must not be.
	pushed, seen := make([]float32, c.Keys), make([]float32, c.Keys)
	began, logged := time.Now(), time.Now()
	from, err := w.takePlace(c, pushed)
	if err != nil {
		return err
	}
	longest, least := time.Duration(0), steps
	for step := from; step < steps; step++ {
		if err := w.rest(ctx, c.Rest, step); err != nil {
			return err
		}
		start := time.Now()
		if err := w.countStep(ctx, c, step, each, pushed, seen); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		if !w.Async {
			if err := w.van.Barrier(ctx, van.Workers); err != nil {
				return err
			}
		}
		// The longest step shows what a moment of trouble, such as a proxy's upgrade,
		// has cost.
		longest = max(longest, time.Since(start))
		if c.While != "" && step+1 >= least {
			if steps, err = w.agree(ctx, c, step, each); err != nil {
				return err
			}
		}
		if err := w.compute(ctx, c.Compute-time.Since(start)); err != nil {
			return err
		}
		if w.due(&logged, step+1, steps) {
			w.logger.Info("counting", "rank", w.van.Rank(), "step", step+1, "of", steps)
		}
	}
	w.report.Steps, w.report.Seconds = steps, since(began)
	w.report.StepsPerSecond = float64(steps) / w.report.Seconds
	w.report.LongestStep = longest.Seconds()
	if err := w.van.Barrier(ctx, van.Workers); err != nil {
		return err
	}
	if c.Late && !c.Verify {
		return nil
	}
	return w.verify(ctx, c, steps, each)
}

// countStep pushes and pulls what a step does, and compares what it gets with what
// this worker pushed and has seen.
func (w *worker) countStep(ctx context.Context, c *counter, step, each int, pushed, seen []float32) error {
	ids := c.step(w.van.Rank(), step)
	r := c.request(ids, each, func(id int32) float32 { return c.value(id, step) })
	if err := w.exchange(ctx, c, r); err != nil {
		return err
	}
	for _, id := range ids {
		pushed[id] += c.value(id, step)
	}
	// The least of a key's values counts as seen: they need not be of one moment.
	now := make(map[int32]float32, len(ids))
	for id, v := range c.values(ids, r.Out, each) { // those of a key are alike, as a rule
		if !c.Late && (v < pushed[id] || v < seen[id]) {
			return fmt.Errorf("key %d (id %d) is %v: this worker alone pushed %v and has seen %v before",
				c.keys[id], id, v, pushed[id], seen[id])
		}
		if least, ok := now[id]; !ok || v < least {
			now[id] = v
		}
	}
	for id, least := range now {
		seen[id] = least
	}
	return nil
}

// agree returns how many steps there are, the same for all workers: one more than now
// as long as the file exists. The first worker announces the last step two steps
// ahead, by a key of its own, so that all have read it before they get there: a
// barrier lies between its push and the others' next pull of that key. The key is one
// that count itself does not use, and its value is the number of steps.
func (w *worker) agree(ctx context.Context, c *counter, step, each int) (steps int, err error) {
	id, err := w.keys.Key(uint64(c.Keys))
	if err != nil {
		return 0, err
	}
	r := kv.Request{Keys: []uint64{id}, Vals: make([]float32, each), Out: make([]float32, each)}
	if c.Lens {
		r.Lens = []int32{int32(each)}
	}
	if _, err := os.Stat(c.While); err != nil && w.van.Rank() == 0 && !c.ended {
		r.Vals[0] = float32(step + 3)
		if err := w.do(w.kv.Push(ctx, r))(ctx); err != nil {
			return 0, fmt.Errorf("push: %w", err)
		}
		c.ended = true
	}
	if err := w.do(w.kv.Pull(ctx, r))(ctx); err != nil {
		return 0, fmt.Errorf("pull: %w", err)
	}
	if last := int(r.Out[0]); last > 0 {
		return last, nil
	}
	return step + 2, nil
}

// exchange pushes and pulls what a step does, in one request or in two.
func (w *worker) exchange(ctx context.Context, c *counter, r kv.Request) error {
	if c.PushPull {
		if err := w.do(w.kv.PushPull(ctx, r))(ctx); err != nil {
			return fmt.Errorf("push and pull: %w", err)
		}
		return nil
	}
	if err := w.do(w.kv.Push(ctx, r))(ctx); err != nil {
		return fmt.Errorf("push: %w", err)
	}
	if err := w.do(w.kv.Pull(ctx, r))(ctx); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	return nil
}

// rest blocks while a file with the step's number is in the folder. All earlier steps
// have been answered, so that nothing of this worker is in flight meanwhile. Tests
// change things between two steps like this: they put the file there, wait for all
// workers' lines in the log, do what they have to, and remove the file.
func (w *worker) rest(ctx context.Context, folder string, step int) error {
	if folder == "" {
		return nil
	}
	file := filepath.Join(folder, strconv.Itoa(step))
	for said := false; ; said = true {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return fmt.Errorf("--count-rest: %w", err)
		}
		// Logged once: a test waits for this line before it changes anything.
		if !said {
			w.logger.Info("resting", "step", step, "rank", w.van.Rank())
		}
		if err := w.compute(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// compute passes the time that a step would take to compute.
func (w *worker) compute(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.van.Context().Done():
		return context.Cause(w.van.Context())
	}
}

// do turns what Push and Pull return into a wait.
func (w *worker) do(ts int32, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err != nil {
			return err
		}
		return w.kv.Wait(ctx, ts)
	}
}

// request makes a request for ids, which are in the order of their keys.
func (c *counter) request(ids []int32, each int, value func(id int32) float32) kv.Request {
	r := kv.Request{Keys: make([]uint64, 0, len(ids)), Vals: c.vals[:0], Out: c.out}
	for _, id := range ids {
		r.Keys = append(r.Keys, c.keys[id])
		n := c.width(id, each)
		if c.Lens {
			r.Lens = append(r.Lens, int32(n))
		}
		// All values of a key are the same, so that a value that was moved within a
		// key would not show; one that was moved to another key does.
		r.Vals = appendRepeated(r.Vals, value(id), n)
	}
	r.Out = slices.Grow(r.Out[:0], len(r.Vals))[:len(r.Vals)]
	clear(r.Out) // a value that does not arrive must not look like the one before
	if c.reuses {
		c.vals, c.out = r.Vals, r.Out
	}
	return r
}

// appendRepeated appends a value n times.
func appendRepeated(all []float32, v float32, n int) []float32 {
	all = slices.Grow(all, n)
	begin := len(all)
	all = append(all, v)
	for len(all)-begin < n {
		more := min(len(all)-begin, n-(len(all)-begin))
		all = append(all, all[begin:begin+more]...)
	}
	return all
}

// values yields the values of pulled ids; of an id whose values are all the same only
// one, which makes long values cheap to check.
func (c *counter) values(ids []int32, out []float32, each int) iter.Seq2[int32, float32] {
	return func(yield func(int32, float32) bool) {
		for _, id := range ids {
			n := c.width(id, each)
			of := out[:n]
			out = out[n:]
			if areSame(of) {
				of = of[:1]
			}
			for _, v := range of {
				if !yield(id, v) {
					return
				}
			}
		}
	}
}

// areSame reports whether all values have the same bits: each equals the one before.
func areSame(v []float32) bool {
	all := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
	return bytes.Equal(all[4:], all[:len(all)-4])
}

// errWrongSums is the error of a job whose sums are not what they must be.
var errWrongSums = errors.New("sums are wrong: updates were lost or applied twice")

// verify pulls this worker's part of all keys that any worker pushed, and compares
// them with the totals. All workers together check every key once.
func (w *worker) verify(ctx context.Context, c *counter, steps, each int) error {
	const chunk = 1 << 16
	workers := w.van.Config().Workers
	w.logger.Info("comparing sums", "steps", steps)
	sums, err := c.totals(workers, steps)
	if err != nil {
		return err
	}
	missing := c.cutPush()
	var ids []int32
	for _, id := range c.byKey {
		// Keys that nobody pushed are not asked for: a pull would make them.
		if int(id)%workers == w.van.Rank() && sums[id] > 0 {
			ids = append(ids, id)
		}
	}
	// Missing units mean lost updates, surplus ones repeated updates. Both can happen
	// at once.
	wrong, lost, surplus := 0, int64(0), int64(0)
	// In chunks, which bounds the size of a message.
	for part := range slices.Chunk(ids, chunk) {
		r := c.request(part, each, func(int32) float32 { return 0 })
		if err := w.do(w.kv.Pull(ctx, r))(ctx); err != nil {
			return fmt.Errorf("pulling the sums: %w", err)
		}
		for id, v := range c.values(part, r.Out, each) {
			if int64(v) == sums[id] || int64(v) == sums[id]-missing[id] {
				continue
			}
			// A few examples: with a wrong key map every key would be wrong.
			if wrong++; wrong <= 5 {
				w.logger.Error("wrong sum", "key", c.keys[id], "id", id, "is", v, "want", sums[id])
			}
			lost += max(0, sums[id]-int64(v))
			surplus += max(0, int64(v)-sums[id])
		}
	}
	w.report.Checked = len(ids)
	if wrong > 0 {
		return fmt.Errorf("%d of %d keys' %w (%d units missing, %d too many)", wrong, len(ids), errWrongSums, lost, surplus)
	}
	return nil
}
