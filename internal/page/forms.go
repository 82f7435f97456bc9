package page

import "slices"

// A Form is a way of keeping parameters equal on all machines.
type Form int

// The forms. Of two that move the same amount, the earlier one is preferred.
const (
	FormServers   Form = iota // each worker pulls and pushes what it uses
	FormHostSums              // each host pulls once for all its workers, and pushes their sum
	FormAllReduce             // all values, in a ring of hosts, each with the sum of its workers
	FormAllGather             // each host sends the sum of what its workers used to every other host
	FormCount                 // number of forms
)

// String returns the form's name, as in JSON.
func (f Form) String() string {
	return [...]string{"servers", "host_sums", "all_reduce", "all_gather"}[f]
}

// A FormRange is a range of neighbouring keys and what each worker did with them.
type FormRange struct {
	First, Last uint64
	Keys        uint64   // distinct ones
	Uses        []uint64 // by worker: pushes, counting each key
	Bytes       []uint64 // by worker: of the values in them
}

// A FormFigure has the results for a range of keys.
type FormFigure struct {
	First, Last uint64
	Keys        uint64
	Bytes       float64 // of all its values, each once
	Alpha       float64 // fraction of them that a worker uses in a step, mean over the workers
	Costs       FormCosts
	Chosen      FormCost // of the chosen form; of all ranges together, each in its own

	// Bytes of its values by machine.
	held []float64 // bytes of its values by machine
}

// alike is the largest ratio between the alphas of neighbouring blocks that are joined into one
// range. Blocks of one variable have similar alphas, while the next variable usually differs.
const alike = 2

// CompareForms computes alpha and the costs of each form, for ranges of keys and for all of
// them together. Neighbours with similar alpha are joined. Costs of all are those of the
// machine that is busiest over all ranges, so they are not the sum of the ranges' costs. The
// alpha of all is the paper's for a model: that of its variables weighted by bytes.
//
// rounds is the number of steps of each worker, 0 for one that has made none. Ranges that
// nobody pushes are left out.
func CompareForms(ranges []FormRange, rounds []uint64, c *FormCluster) (figures []FormFigure, all FormFigure) {
	for _, r := range ranges {
		f, ok := figureOf(&r, rounds)
		if !ok {
			continue
		}
		// By the keys of each block, before neighbours are joined: a joined range may have its
		// bytes at one end.
		f.held = c.held(f.First, f.Last, f.Bytes)
		if n := len(figures); n > 0 && isAlike(figures[n-1].Alpha, f.Alpha) {
			figures[n-1].joinNext(&f)
			continue
		}
		figures = append(figures, f)
	}
	var sums FormLoads
	chosen := make([]float64, len(c.Machines))
	for i := range figures {
		f := &figures[i]
		loads := c.Loads(f.held, f.Alpha)
		f.Costs = c.Busiest(&loads)
		form := f.Costs.Chosen()
		f.Chosen = f.Costs[form]
		sums.addLoads(&loads)
		for m, bytes := range loads[form] {
			chosen[m] += bytes
		}
		if i == 0 {
			all = FormFigure{First: f.First}
		}
		all.Last, all.Keys = f.Last, all.Keys+f.Keys
		all.Alpha += f.Alpha * f.Bytes
		all.Bytes += f.Bytes
	}
	if all.Bytes > 0 {
		all.Alpha /= all.Bytes
		all.Costs, all.Chosen = c.Busiest(&sums), c.busiest(chosen)
	}
	return figures, all
}

// isAlike reports whether two alphas are close enough to be of one variable.
func isAlike(a, b float64) bool { return a < alike*b && b < alike*a }

// joinNext extends the range by its neighbour; alpha is weighted by bytes.
func (f *FormFigure) joinNext(next *FormFigure) {
	bytes := f.Bytes + next.Bytes
	f.Alpha = (f.Alpha*f.Bytes + next.Alpha*next.Bytes) / bytes
	f.Last, f.Keys, f.Bytes = next.Last, f.Keys+next.Keys, bytes
	for i, b := range next.held {
		f.held[i] += b
	}
}

// figureOf returns a range's alpha and bytes. ok is false if no worker with known steps has
// pushed it. The size of all values is extrapolated from the mean size of the values pushed.
func figureOf(r *FormRange, rounds []uint64) (f FormFigure, ok bool) {
	var uses, bytes uint64
	workers, sum := 0, 0.0
	for w, n := range rounds {
		if n == 0 {
			continue
		}
		workers++
		if w < len(r.Uses) {
			uses, bytes = uses+r.Uses[w], bytes+r.Bytes[w]
			// A worker's alpha cannot exceed 1. Counts of sampled keys, scaled up, can.
			sum += min(float64(r.Uses[w])/float64(n)/float64(r.Keys), 1)
		}
	}
	if uses == 0 || r.Keys == 0 {
		return FormFigure{}, false
	}
	return FormFigure{
		First: r.First, Last: r.Last, Keys: r.Keys,
		Bytes: float64(r.Keys) * float64(bytes) / float64(uses), Alpha: sum / float64(workers),
	}, true
}

// manyKeys is the least number of keys that a worker pushes for each timestamp if timestamps
// are its steps. Below it, it pushes each key in a request of its own.
const manyKeys = 1.5

// PushRounds returns the number of steps of each worker. steps counts rounds of pushes. A
// worker that pushes each key by itself begins a round for each key, so its steps are the
// number of times that it pushed its most pushed key (most). pushed is the number of keys that
// it pushed in total.
func PushRounds(steps, pushed, most []uint64) []uint64 {
	rounds := slices.Clone(steps)
	for w, n := range steps {
		if byKey(n, pushed[w]) {
			rounds[w] = min(n, most[w])
		}
	}
	return rounds
}

// PushedByKey reports whether any worker pushes each key by itself, in which case [PushRounds]
// needs most.
func PushedByKey(steps, pushed []uint64) bool {
	for w, n := range steps {
		if byKey(n, pushed[w]) {
			return true
		}
	}
	return false
}

// byKey reports whether a worker pushes each key in a request of its own.
func byKey(steps, pushed uint64) bool { return steps > 0 && float64(pushed) < manyKeys*float64(steps) }
