package page

import "slices"

// A Form is a way of keeping parameters.
type Form int

// The forms, in the order in which one is preferred to the next that moves as much.
const (
	FormServers   Form = iota // each worker pulls and pushes what it uses
	FormHostSums              // each host does, once: pulls shared, pushes summed before they leave
	FormAllReduce             // all values by a ring of hosts, each of which has added its workers' up
	FormAllGather             // each host sends the sum of what its workers used to every other
	FormCount                 // how many there are
)

// String returns the form's name, as in JSON.
func (f Form) String() string {
	return [...]string{"servers", "host_sums", "all_reduce", "all_gather"}[f]
}

// A FormRange is neighbouring keys and what each worker did with them.
type FormRange struct {
	First, Last uint64
	Keys        uint64   // distinct ones
	Uses        []uint64 // by worker: a key of a push each
	Bytes       []uint64 // by worker: of the values pushed
}

// A FormFigure has the figures of a range of keys.
type FormFigure struct {
	First, Last uint64
	Keys        uint64
	Bytes       float64 // of all its values, each once
	Alpha       float64 // share of them that a worker uses in a step, mean of the workers
	Costs       FormCosts
	Chosen      FormCost // of the form that is chosen; of all ranges, each in its own

	held []float64 // bytes of its values by machine
}

// alike is the largest factor between alphas of neighbouring blocks of one range: those of
// one variable are alike, and the next variable is mostly of another kind.
const alike = 2

// CompareForms returns neighbours whose alpha is alike as one range each, and the sums of all:
// what the busiest machine of all ranges together moves. The alpha of the sum is the paper's
// of a model: that of its ranges weighted by bytes. Rounds are the steps that each worker
// made, 0 for one that has made none; ranges that nobody pushes are left out.
func CompareForms(ranges []FormRange, rounds []uint64, c *FormCluster) (figures []FormFigure, all FormFigure) {
	for _, r := range ranges {
		f, ok := figureOf(&r, rounds)
		if !ok {
			continue
		}
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

func isAlike(a, b float64) bool { return a < alike*b && b < alike*a }

func (f *FormFigure) joinNext(next *FormFigure) {
	bytes := f.Bytes + next.Bytes
	f.Alpha = (f.Alpha*f.Bytes + next.Alpha*next.Bytes) / bytes
	f.Last, f.Keys, f.Bytes = next.Last, f.Keys+next.Keys, bytes
	for i, b := range next.held {
		f.held[i] += b
	}
}

// figureOf returns a range's alpha and bytes; ok is false where nobody has pushed it in a
// step that is known.
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

// manyKeys is how many keys a worker pushes for each timestamp, at least, for timestamps to
// be its steps.
const manyKeys = 1.5

// PushRounds returns how many steps each worker made: as many as it began rounds of pushes, or,
// where it pushes each key by itself and so begins a round for each, as often as it pushed
// the key that it pushed most. Pushed is how many keys it pushed, most how often the key.
func PushRounds(steps, pushed, most []uint64) []uint64 {
	rounds := slices.Clone(steps)
	for w, n := range steps {
		if byKey(n, pushed[w]) {
			rounds[w] = min(n, most[w])
		}
	}
	return rounds
}

// PushedByKey reports whether some worker pushes each key by itself, so that [PushRounds] depends on
// what it pushed most.
func PushedByKey(steps, pushed []uint64) bool {
	for w, n := range steps {
		if byKey(n, pushed[w]) {
			return true
		}
	}
	return false
}

func byKey(steps, pushed uint64) bool { return steps > 0 && float64(pushed) < manyKeys*float64(steps) }
