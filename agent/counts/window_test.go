package counts

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func windowed(limit int) *Locality {
	o := testOptions()
	o.WindowKeys = limit
	return NewLocality(o)
}

// use has a worker push and then pull keys, values of 4 bytes, in one step.
func use(j *Locality, worker int, step int32, keys []uint64) {
	for i, push := range []bool{true, false} {
		r := Request{Worker: worker, Time: at(float64(step)), Timestamp: 2*step + int32(i), Push: push, Pull: !push}
		j.Ask(r)
		b := Batch{Worker: worker, Keys: keys}
		if push {
			b.Each = [Planes]uint64{Pushes: 1, PushedBytes: 4}
		} else {
			b.Each = [Planes]uint64{Pulls: 1}
		}
		j.Use(r.Time, b)
		// Its answer is not a use.
		j.Use(r.Time, Batch{Worker: worker, Keys: keys, Each: [Planes]uint64{PulledBytes: 4}})
	}
}

// A window has nothing of the run before: the planner would have keys moved that
// no server knows yet.
func TestWindowOfARun(t *testing.T) {
	j := windowed(1 << 20)
	use(j, 0, 0, []uint64{1, 2, 3})
	j.TakeWindow(1 << 20)
	use(j, 0, 1, []uint64{1, 2, 3})
	j.Restart()
	use(j, 0, 0, []uint64{3, 4})
	if w := j.TakeWindow(1 << 20); !slices.Equal(w.Keys, []uint64{3, 4}) || !w.Shifted {
		t.Errorf("the first window of a run has keys %v; begins a run: %v", w.Keys, w.Shifted)
	}
	use(j, 0, 1, []uint64{3, 4})
	j.DropWindow()
	if w := j.TakeWindow(1 << 20); w != nil {
		t.Errorf("keys %v after a window was dropped", w.Keys)
	}
}

// A window counts as a plain table does.
func TestWindowAgainstTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := windowed(1 << 20)
		if j.TakeWindow(1<<20) != nil {
			t.Fatal("an empty window")
		}
		step := int32(0)
		for range 2 { // windows
			counted := []map[uint64]uint32{{}, {}, {}}
			steps := make([]int, 3)
			for range rapid.IntRange(1, 10).Draw(t, "steps") {
				worker := rapid.IntRange(0, 2).Draw(t, "worker")
				keys := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 30), 1, 8, rapid.ID).Draw(t, "keys")
				slices.Sort(keys)
				use(j, worker, step, keys)
				step++
				steps[worker]++
				for _, k := range keys {
					counted[worker][k]++
				}
			}
			w := j.TakeWindow(1 << 20)
			if !slices.IsSorted(w.Keys) || len(w.Sizes) != len(w.Keys) || slices.Max(w.Sizes) != 4 || slices.Min(w.Sizes) != 4 {
				t.Fatalf("keys %v, sizes %v", w.Keys, w.Sizes)
			}
			for _, ww := range w.Workers {
				got := map[uint64]uint32{}
				for _, u := range ww.Uses {
					if u.Pulls != u.Pushes {
						t.Fatalf("%+v", u)
					}
					got[w.Keys[u.Key]] = u.Pulls
				}
				if !maps.Equal(got, counted[ww.Worker]) || ww.Steps != steps[ww.Worker] {
					t.Fatalf("worker %d used %v in %d steps, want %v in %d", ww.Worker, got, ww.Steps, counted[ww.Worker], steps[ww.Worker])
				}
				if !slices.Equal(ww.Pulled, ww.Pushed) || len(ww.Pulled) == 0 || !slices.IsSorted(ww.Pulled) {
					t.Fatalf("worker %d last pulled %v and pushed %v", ww.Worker, ww.Pulled, ww.Pushed)
				}
				counted[ww.Worker] = nil
			}
			for worker, left := range counted {
				if len(left) > 0 {
					t.Fatalf("worker %d is not in the window", worker)
				}
			}
		}
	})
}

// What does not fit is counted, and what fits is whole.
func TestWindowIsBounded(t *testing.T) {
	j := windowed(10)
	for step := range int32(4) {
		use(j, 0, step, []uint64{1, 2, 3})
	}
	w := j.TakeWindow(1 << 20)
	if w.LeftOut != 24-9 || len(w.Keys) != 3 || w.Workers[0].Steps != 2 {
		t.Errorf("%+v", w)
	}
	if j := NewLocality(testOptions()); j.TakeWindow(1<<20) != nil {
		t.Error("a window that nobody wants")
	}
}

// Of more keys than are wanted those that are used most are kept, and some of
// the others.
func TestWindowKeepsTheMostUsed(t *testing.T) {
	j := windowed(1000)
	for step := range int32(10) {
		use(j, int(step)%2, step, []uint64{1, 10 + uint64(step), 50, 60 + uint64(step)})
	}
	w := j.TakeWindow(5)
	if len(w.Keys) != 5 || !slices.Contains(w.Keys, 1) || !slices.Contains(w.Keys, 50) || !slices.IsSorted(w.Keys) || w.LeftOut != 2*(20-3) {
		t.Fatalf("%+v", w)
	}
	uses := uint32(0)
	for _, ww := range w.Workers {
		for _, u := range ww.Uses {
			if k := w.Keys[u.Key]; (k == 1 || k == 50) != (u.Pulls == 5) {
				t.Errorf("key %d was used %+v", k, u)
			}
			uses += u.Pulls + u.Pushes
		}
		for _, k := range ww.Pulled {
			if !slices.ContainsFunc(ww.Uses, func(u WindowUse) bool { return u.Key == k }) {
				t.Errorf("%+v", ww)
			}
		}
	}
	if uses != 2*(20+3) {
		t.Errorf("%d uses", uses)
	}
}

// Runs of keys, values of several lengths, and sampled requests.
func TestWindowOfRunsAndLens(t *testing.T) {
	j := windowed(100)
	j.Ask(Request{Time: at(0), Timestamp: 1, Push: true})
	j.Use(at(0), Batch{Run: Run{First: 10, Step: 5, N: 3}, Ascending: true,
		Each: [Planes]uint64{Pushes: 8, PushedBytes: 8 * 12}})
	j.Use(at(0), Batch{Keys: []uint64{12, 13}, Lens: []int32{1, 2}, LenUnit: 4 * 8, LenPlane: PushedBytes,
		Each: [Planes]uint64{Pushes: 8}})
	w := j.TakeWindow(1 << 20)
	if !slices.Equal(w.Keys, []uint64{10, 12, 13, 15, 20}) || !slices.Equal(w.Sizes, []uint32{12, 4, 8, 12, 12}) {
		t.Errorf("keys %v, sizes %v", w.Keys, w.Sizes)
	}
	if u := w.Workers[0].Uses; len(u) != 5 || u[0].Pushes != 1 || w.Workers[0].Steps != 1 {
		t.Errorf("%+v", w.Workers)
	}
}
