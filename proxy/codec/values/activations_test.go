package values

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// party is a worker with its two links to a server.
type party struct{ up, down *way }

func (e *ends) party(t testing.TB, worker string) party {
	return party{e.dial(t, e.worker, e.server, worker), e.dial(t, e.server, e.worker, "ps8")}
}

func (p party) close() {
	p.up.close()
	p.down.close()
}

// pull has the worker pull, and returns what it gets of what the server has.
func (p party) pull(t testing.TB, q request, has []float32) []float32 {
	t.Helper()
	p.ask(t, q)
	return p.answer(t, q, has)
}

func (p party) ask(t testing.TB, q request) {
	q.pull, q.vals = true, nil
	p.up.carry(t, q.frames())
}

func (p party) answer(t testing.TB, q request, has []float32) []float32 {
	q.pull, q.answer, q.vals = true, true, has
	return floats(p.down.carry(t, q.frames())[2])
}

// push has the worker push, and returns what the server gets.
func (p party) push(t testing.TB, q request, vals []float32) []float32 {
	t.Helper()
	q.push, q.vals = true, vals
	return floats(p.up.carry(t, q.frames())[2])
}

// thresholded is what the largest by magnitude of each row of so many values are,
// zeros for the rest, by sorting; and their positions.
func thresholded(vals []float32, row int, sparsity float64) (goes []float32, mask []bool) {
	goes, mask = make([]float32, len(vals)), make([]bool, len(vals))
	for from := 0; from < len(vals); from += row {
		var sorted []float64
		for _, v := range vals[from : from+row] {
			sorted = append(sorted, math.Abs(float64(v)))
		}
		slices.Sort(sorted)
		tau := sorted[min(int(math.Ceil(float64(row)*sparsity)), row-1)]
		for i := from; i < from+row; i++ {
			m := math.Abs(float64(vals[i]))
			mask[i] = sorted[row-1] == 0 || m >= tau && m > 0
			if mask[i] {
				goes[i] = vals[i]
			}
		}
	}
	return goes, mask
}

func masked(vals []float32, mask []bool) []float32 {
	goes := slices.Clone(vals)
	for i, m := range mask {
		if !m {
			goes[i] = 0
		}
	}
	return goes
}

// Two workers that pull rows and push their gradients get the largest values of each
// row, and the server gets of the gradients the same positions, in so many times fewer
// bytes. Before that, two pulls and pushes go whole.
func TestActivations(t *testing.T) {
	for _, c := range []struct {
		sparsity   float64
		width, row int
		fewer      float64
		widths     bool
		quantize   int
	}{{sparsity: 0.9, width: 512, fewer: 10}, {sparsity: 0.95, width: 512, fewer: 20}, {sparsity: 0.95, width: 2048, row: 256, fewer: 19},
		{sparsity: 0.9, width: 64, fewer: 9}, {sparsity: 0.75, width: 16, fewer: 2.5}, {sparsity: 0.9, width: 64, fewer: 9, widths: true}} {
		e := newEnds(t, Rule{Activations: c.sparsity, Row: c.row})
		both := []party{e.party(t, "ps9"), e.party(t, "ps11")}
		rng := rand.New(rand.NewPCG(1, 1))
		row := c.width
		if c.row > 0 {
			row = c.row
		}
		const keys = 32
		for step := range 6 {
			for who, w := range both {
				q := request{timestamp: int32(2 * step), keys: randomKeys(rng, keys, 1_000_000)}
				if c.widths {
					q.lens = slices.Repeat([]int32{int32(c.width)}, keys)
				}
				has, gradient := normal(rng, keys*c.width), normal(rng, keys*c.width)
				want, mask := thresholded(has, row, c.sparsity)
				wantGradient := masked(gradient, mask)
				if step < 2 {
					want, wantGradient = has, gradient
				}
				if got := w.pull(t, q, has); !sameBits(got, want) {
					t.Fatalf("%+v, step %d, worker %d got other values", c, step, who)
				}
				q.timestamp++
				if got := w.push(t, q, gradient); !sameBits(got, wantGradient) {
					t.Fatalf("%+v, step %d, of worker %d the server got other gradients", c, step, who)
				}
			}
		}
		worker, server := e.worker.Counts(), e.server.Counts()
		if worker.Reasons[ReasonUnpaired] != 4 || worker.Reasons[ReasonUnmasked] != 4 || server.Reasons[ReasonUnasked] != 4 || len(worker.Reasons)+len(server.Reasons) != 3 {
			t.Errorf("%+v: counted %v and %v", c, worker.Reasons, server.Reasons)
		}
		masked, activations := worker.Forms[0], server.Forms[0]
		if masked.Form != "masked" || activations.Form != "activations" {
			t.Errorf("%+v: %+v, %+v", c, worker.Forms, server.Forms)
		}
		if times := float64(masked.Bytes+activations.Bytes) / float64(masked.Encoded+activations.Encoded); times < c.fewer {
			t.Errorf("%+v: values took %.1f times fewer bytes", c, times)
		}
		for _, w := range both {
			w.close()
		}
	}
}

// Part of a model pushes activations, the next one pulls them and pushes gradients,
// which the first pulls: of the activations the largest of each row pass, of the
// gradients their positions, under the same keys in each step or others.
func TestActivationsPushed(t *testing.T) {
	const width, keys, sparsity = 128, 32, 0.9
	for _, fresh := range []bool{false, true} {
		e := newEnds(t, Rule{Activations: sparsity, ActivationsPushed: true})
		first, next := e.party(t, "ps9"), e.party(t, "ps11")
		rng := rand.New(rand.NewPCG(1, 1))
		for step := range 10 {
			q := request{}
			for i := range keys {
				k := uint64(i)
				if fresh {
					k += uint64(keys * step)
				}
				q.keys = append(q.keys, k)
			}
			activations, gradients := normal(rng, keys*width), normal(rng, keys*width)
			want, mask := thresholded(activations, width, sparsity)
			wantGradients := masked(gradients, mask)
			if step < 2 {
				wantGradients = gradients
			}
			q.timestamp = int32(2 * step)
			stored := first.push(t, q, activations)
			if !sameBits(stored, want) {
				t.Fatalf("step %d: the server got other activations", step)
			}
			if got := next.pull(t, q, stored); !sameBits(got, want) {
				t.Fatalf("step %d: the next part got other activations", step)
			}
			q.timestamp++
			if stored = next.push(t, q, gradients); !sameBits(stored, wantGradients) {
				t.Fatalf("step %d: the server got other gradients", step)
			}
			if got := first.pull(t, q, stored); !sameBits(got, wantGradients) {
				t.Fatalf("step %d: the first part got other gradients", step)
			}
		}
		if n := e.worker.Counts().Reasons; n[ReasonUnpaired] != 2 || n[ReasonUnmasked] != 2 || len(n) != 2 {
			t.Errorf("counted %v", n)
		}
		first.close()
		next.close()
	}
}

// What a worker gets and what of its pushes the server gets is whole, or what sorting
// says of the one pull that the push can be for, whatever comes in which order: pulls
// without pushes and pushes without pulls, some of the keys, several pulls at a time,
// repeats, another connection, another number of values.
func TestActivationsInAnyOrder(t *testing.T) {
	const sparsity = 0.8
	byRows, masks := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		e := newEnds(t, Rule{Activations: sparsity})
		w := e.party(t, "ps9")
		defer func() { w.close() }()
		open := map[uint64][][]bool{} // masks of a key's pulls that were not pushed since, nil where one came whole
		width, pulls := 10, 0
		pairs := rng.IntN(3) > 0 // else nothing pairs but by chance
		var last []uint64
		for step := range 40 {
			what := rng.IntN(12)
			q := request{timestamp: int32(step), keys: randomKeys(rng, 1+rng.IntN(6), 12)}
			if pairs && what < 9 {
				if what = step % 2 * 5; what == 5 && last != nil {
					q.keys = last
				}
			}
			if pulls == mostPulls {
				what = 10
			}
			n := width * len(q.keys)
			switch {
			case what < 5:
				has := normal(rng, n)
				for range rng.IntN(2) {
					w.ask(t, q) // and again below
				}
				got := w.pull(t, q, has)
				want, mask := thresholded(has, width, sparsity)
				whole := sameBits(got, has)
				if !whole && !sameBits(got, want) {
					rt.Fatalf("step %d: got %v of %v", step, got, has)
				}
				pulls++
				last = q.keys
				for i, k := range q.keys {
					var one []bool
					if !whole {
						one = mask[i*width : (i+1)*width]
						byRows++
					}
					open[k] = append(open[k], one)
				}
			case what < 10:
				gradient := normal(rng, n)
				got := w.push(t, q, gradient)
				if rng.IntN(4) == 0 && !sameBits(got, w.push(t, q, gradient)) {
					rt.Fatalf("step %d: a repeat came otherwise", step)
				}
				for i, k := range q.keys {
					want := gradient[i*width : (i+1)*width]
					if len(open[k]) == 1 && len(open[k][0]) == width {
						want = masked(want, open[k][0])
						masks++
					}
					if got := got[i*width : (i+1)*width]; !sameBits(got, want) {
						rt.Fatalf("step %d: of key %d came %v, want %v", step, k, got, want)
					}
					open[k] = open[k][min(1, len(open[k])):]
				}
			case what == 10:
				w.close()
				w = e.party(t, "ps9")
				pulls = 0
				clear(open)
			default:
				width = 5 + rng.IntN(10) // a mask of another width is none
			}
		}
	})
	if byRows == 0 || masks == 0 {
		t.Errorf("%d rows were thresholded and %d masked", byRows, masks)
	}
}
