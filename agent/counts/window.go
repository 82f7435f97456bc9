package counts

import "slices"

// DefaultWindowKeys bounds the uses of keys in a window, if windows are wanted: sorting so many
// takes some milliseconds. If workers use more, the window covers a sample of the keys, with
// all uses of each.
const DefaultWindowKeys = 1 << 17

// A Window is what workers used, key by key, since the previous window was taken or since a
// worker turned to other keys; of all keys or of a sample. The planner decides by it what
// should move.
type Window struct {
	First, Last int64    // nanoseconds since 1970
	Keys        []uint64 // ascending
	Sizes       []uint32 // bytes of each key's value as last pushed; 0: not pushed
	Workers     []WorkerWindow
	LeftOut     uint64 // uses of keys that are not in the window
	// Shifted says that the window is the job's first, or begins where a worker turned to other
	// keys.
	Shifted bool
}

// A WorkerWindow is one worker's part of a window.
type WorkerWindow struct {
	Worker int
	Steps  int // rounds of pushes, or of pulls where it pushes nothing
	// Uses are the keys that it used, by index in Window.Keys, ascending.
	Uses []WindowUse
	// Pulled and Pushed are the keys of its newest complete step, likewise.
	Pulled, Pushed []uint32
}

// A WindowUse says how often a key was used.
type WindowUse struct {
	Key           uint32 // index in Window.Keys
	Pulls, Pushes uint32
}

// A collector gathers a window as copies of the key lists, reduced to the sampled keys. They
// are sorted only when the window is taken, outside the lock.
//
// Invariants: at most limit keys, and as many lists; the lists' ranges [from, to) are
// consecutive in keys. Guarded by Locality.mu until it is taken.
type collector struct {
	limit   int
	sample  sample
	full    bool // a long list did not fit: no further one is taken, so the window is of the time before
	keys    []uint64
	uses    []listUse
	first   int64 // time of the first and of the last list, in nanoseconds since 1970
	last    int64
	leftOut uint64
	shift   shift
}

// listUse is one use of a list of keys.
type listUse struct {
	worker     int
	step       uint64 // number of steps that the worker had begun
	pull, push bool
	from, to   int      // the keys' range in collector.keys
	size       uint32   // bytes of each value, if lens is nil
	lens       []uint32 // bytes of each value; may be nil
}

// addBatch adds the keys of a request. Answers are no uses and are left out.
//
// A list for which there is no room is left out, but for a long one the sample is thinned
// first, as long as enough keys of it would remain: a job with lists of millions of keys would
// otherwise have no window at all.
func (c *collector) addBatch(at int64, step uint64, b *Batch) {
	pulls, pushes := b.Each[Pulls], b.Each[Pushes]
	n := max(len(b.Keys), b.Run.N)
	if pulls+pushes == 0 || n == 0 {
		return
	}
	// What was used before the shift would only delay the plan.
	if since, shifted := c.shift.countKeys(b, len(c.uses)); shifted {
		c.dropBefore(since, at)
	}
	if len(c.uses) >= c.limit {
		c.leftOut += uint64(n)
		return
	}
	if len(c.uses) == 0 {
		c.sample.turn = turnAt(at)
	}
	// At least 16 blocks, so that thinning has something to choose from.
	isLong := n > max(c.limit/long, 16<<sampleBits)
	if isLong {
		for len(c.keys)+c.sample.part(n) > c.limit && c.sample.part(n) > c.limit/enough {
			c.thin()
		}
		if c.full = c.full || len(c.keys)+c.sample.part(n) > c.limit; c.full {
			c.leftOut += uint64(n)
			return
		}
	}
	if len(c.uses) == 0 {
		c.first = at
	}
	c.last = at
	u := listUse{worker: b.Worker, step: step, pull: pulls > 0, push: pushes > 0, from: len(c.keys)}
	weight := max(pulls, pushes) // each access counts as so many where requests are sampled
	// Amounts are multiplied by the weight of the request; the size of a value is not.
	u.size = uint32(b.Each[PushedBytes] / weight)
	lens := b.Lens != nil && b.LenPlane == PushedBytes
	for i, key := range b.Keys {
		if !c.sample.has(key) {
			continue
		}
		c.keys = append(c.keys, key)
		if lens {
			u.lens = append(u.lens, uint32(uint64(max(b.Lens[i], 0))*b.LenUnit/weight))
		}
	}
	c.keys = c.sample.appendRun(c.keys, b.Run)
	u.to = len(c.keys)
	c.leftOut += uint64(n - (u.to - u.from))
	c.uses = append(c.uses, u)
	for isLong && len(c.keys) > c.limit && c.sample.part(n) > c.limit/enough { // of this one more than as a rule
		c.thin()
		u = c.uses[len(c.uses)-1]
	}
	if len(c.keys) > c.limit {
		c.full = isLong
		c.leftOut += uint64(len(c.keys) - u.from)
		c.keys, c.uses = c.keys[:u.from], c.uses[:len(c.uses)-1]
	}
}

// A list is long if it has more than limit/long keys. The sample is thinned for it down to
// limit/enough of its keys.
const (
	long   = 4
	enough = 16
)

// thin halves the sample and removes the keys that are no longer in it, in place.
func (c *collector) thin() {
	c.sample.bits++
	kept := c.keys[:0]
	for i := range c.uses {
		u := &c.uses[i]
		from, lens := len(kept), u.lens[:0]
		for k, key := range c.keys[u.from:u.to] {
			if !c.sample.has(key) {
				c.leftOut++
				continue
			}
			kept = append(kept, key)
			if u.lens != nil {
				lens = append(lens, u.lens[k])
			}
		}
		if u.lens != nil {
			u.lens = lens
		}
		u.from, u.to = from, len(kept)
	}
	c.keys = kept
}

// dropBefore drops the lists before number list, because workers use other keys since then.
func (c *collector) dropBefore(list int, at int64) {
	c.leftOut += uint64(len(c.keys))
	c.first, c.full = at, false
	from := len(c.keys)
	if list < len(c.uses) {
		from = c.uses[list].from
	}
	c.leftOut -= uint64(len(c.keys) - from)
	c.keys = slices.Delete(c.keys, 0, from)
	c.uses = slices.Delete(c.uses, 0, min(list, len(c.uses)))
	for i := range c.uses {
		c.uses[i].from -= from
		c.uses[i].to -= from
	}
}

// DropWindow begins a new window, as if it were the first: nothing is known of earlier ones. It
// is for the beginning of a run.
func (j *Locality) DropWindow() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dropWindow()
}

// dropWindow is DropWindow for callers that hold j.mu.
func (j *Locality) dropWindow() {
	if j.window != nil {
		j.window = &collector{limit: j.window.limit}
	}
}

// TakeWindow returns the uses since the last call, trimmed to at most most keys, and begins a
// new window. It returns nil if nothing was used or windows are off. Sorting is done without
// the lock, so that counting continues; the shift's memory of this window is set afterwards,
// unless the window was dropped meanwhile.
func (j *Locality) TakeWindow(most int) *Window {
	j.mu.Lock()
	c := j.window
	if c == nil || len(c.uses) == 0 {
		j.mu.Unlock()
		return nil
	}
	// The next window starts with a larger sample, as its lists may be shorter. If they are
	// not, the sample is thinned again with the first long list.
	next := &collector{limit: c.limit, sample: c.sample.larger(), shift: c.shift}
	j.window = next
	j.mu.Unlock()
	w := c.window()
	w.Shifted = c.shift.noticed || c.shift.known == nil
	j.mu.Lock()
	if j.window == next {
		next.shift.taken(w.Keys, c.sample)
	}
	j.mu.Unlock()
	w.trim(most)
	return w
}

// trim reduces the window to most keys. Half of them are the most used ones; the other half is
// chosen by a hash that changes with each window, so that over time every key is reported.
// Among keys that are used equally it keeps whole blocks of neighbours, which can move as
// ranges.
func (w *Window) trim(most int) {
	if len(w.Keys) <= most {
		return
	}
	// total[i] is zeroed for keys that go, which marks them below. Keys are ordered as numbers: their
	// uses, most first, then a part of a hash, then the index, of indexBits.
	total, order := make([]uint32, len(w.Keys)), make([]uint64, len(w.Keys))
	for _, ww := range w.Workers {
		for _, u := range ww.Uses {
			total[u.Key] += u.Pulls + u.Pushes
		}
	}
	const indexBits, usesBits = 20, 20
	for i := range order {
		hash := (w.Keys[i]>>sampleBits ^ uint64(w.Last)) * 0x9e3779b97f4a7c15
		order[i] = uint64(1<<usesBits-1-min(total[i], 1<<usesBits-1))<<(64-usesBits) | hash>>usesBits&^(1<<indexBits-1) | uint64(i)
	}
	slices.Sort(order)
	for i := range order[most/2:] {
		order[most/2+i] &= 1<<(64-usesBits) - 1
	}
	slices.Sort(order[most/2:])
	for _, o := range order[most:] {
		i := o & (1<<indexBits - 1)
		w.LeftOut += uint64(total[i])
		total[i] = 0
	}
	number := make([]uint32, len(w.Keys)) // new indexes of the keys that stay
	n := uint32(0)
	for i, uses := range total {
		if uses > 0 {
			w.Keys[n], w.Sizes[n], number[i] = w.Keys[i], w.Sizes[i], n
			n++
		}
	}
	w.Keys, w.Sizes = w.Keys[:n], w.Sizes[:n]
	renumber := func(list []uint32) []uint32 {
		kept := list[:0]
		for _, i := range list {
			if total[i] > 0 {
				kept = append(kept, number[i])
			}
		}
		return kept
	}
	for i := range w.Workers {
		ww := &w.Workers[i]
		uses := ww.Uses[:0]
		for _, u := range ww.Uses {
			if total[u.Key] > 0 {
				u.Key = number[u.Key]
				uses = append(uses, u)
			}
		}
		ww.Uses, ww.Pulled, ww.Pushed = uses, renumber(ww.Pulled), renumber(ww.Pushed)
	}
}

// window sorts the gathered lists and counts the uses of each key. It owns c and needs no lock.
func (c *collector) window() *Window {
	w := &Window{First: c.first, Last: c.last, LeftOut: c.leftOut, Keys: slices.Clone(c.keys)}
	slices.Sort(w.Keys)
	w.Keys = slices.Compact(w.Keys)
	w.Sizes = make([]uint32, len(w.Keys))
	var lists [][]listUse // by worker
	for _, u := range c.uses {
		for u.worker >= len(lists) {
			lists = append(lists, nil)
		}
		lists[u.worker] = append(lists[u.worker], u)
	}
	// Reused for each worker: the loop below resets what it has counted.
	pulls, pushes := make([]uint32, len(w.Keys)), make([]uint32, len(w.Keys))
	for worker, uses := range lists {
		if len(uses) == 0 {
			continue
		}
		ww := WorkerWindow{Worker: worker, Steps: steps(uses)}
		whole := uses[len(uses)-1].step // the newest step that has certainly ended
		if whole > uses[0].step {
			whole--
		}
		for _, u := range uses {
			at := 0
			for i, key := range c.keys[u.from:u.to] {
				at = find(w.Keys, key, at)
				if u.pull {
					pulls[at]++
					if u.step == whole {
						ww.Pulled = append(ww.Pulled, uint32(at))
					}
				}
				if u.push {
					pushes[at]++
					if u.step == whole {
						ww.Pushed = append(ww.Pushed, uint32(at))
					}
					w.Sizes[at] = u.size
					if u.lens != nil {
						w.Sizes[at] = u.lens[i]
					}
				}
			}
		}
		for key := range w.Keys {
			if pulls[key]+pushes[key] > 0 {
				ww.Uses = append(ww.Uses, WindowUse{uint32(key), pulls[key], pushes[key]})
				pulls[key], pushes[key] = 0, 0
			}
		}
		for _, list := range []*[]uint32{&ww.Pulled, &ww.Pushed} {
			slices.Sort(*list)
			*list = slices.Compact(*list)
		}
		w.Workers = append(w.Workers, ww)
	}
	return w
}

// find returns the index of a key that is in keys. It looks near the index last first, since
// lists usually ascend.
func find(keys []uint64, key uint64, last int) int {
	if last < len(keys) && keys[last] <= key {
		step := 1
		for last+step < len(keys) && keys[last+step] <= key {
			last += step
			step *= 2
		}
		end := min(last+step, len(keys))
		at, _ := slices.BinarySearch(keys[last:end], key)
		return last + at
	}
	at, _ := slices.BinarySearch(keys, key)
	return at
}

// steps returns the number of a worker's rounds of pushes, or of pulls if it pushes nothing.
func steps(uses []listUse) int {
	count := func(push bool) int {
		n, last := 0, uint64(0)
		for _, u := range uses {
			if (push && u.push || !push && u.pull) && (n == 0 || u.step != last) {
				n, last = n+1, u.step
			}
		}
		return n
	}
	if n := count(true); n > 0 {
		return n
	}
	return count(false)
}
