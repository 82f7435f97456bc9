package simulate

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/dynamic"
	"github.com/psidecar/psidecar/test/require"
)

// options are those of k machines with a worker each, keys at home by their
// remainder.
func options(k int, strategies ...string) Options {
	o := Options{Machines: k, EpochSteps: 2, KeyBytes: 8, Strategies: strategies, Batches: 2,
		Home: func(key uint64) int32 { return int32(key % uint64(k)) }}
	for i := range k {
		o.Machine = append(o.Machine, i)
	}
	return o
}

func results(t require.TB, o Options, requests []Request) []Result {
	s := require.Value(New(o))(t)
	for i := range requests {
		require.NoError(t, s.Add(&requests[i]))
	}
	return s.Results()
}

// A worked example, by hand: two machines, values of 4 bytes. A pull takes 20
// bytes, a push 12, a move 12.
func TestByHand(t *testing.T) {
	requests := []Request{
		{Worker: 0, Step: 0, Pull: true, Keys: []uint64{0, 1}, Size: 4},
		{Worker: 1, Step: 0, Pull: true, Keys: []uint64{0}, Size: 4},
		{Worker: 0, Step: 0, Push: true, Keys: []uint64{1}, Size: 4},
		{Worker: 0, Step: 1, Pull: true, Keys: []uint64{1}, Size: 4},
		{Worker: 1, Step: 1, Pull: true, Keys: []uint64{2}, Size: 4},
		{Worker: 0, Step: 2, Pull: true, Keys: []uint64{1}, Size: 4},
		{Worker: 1, Step: 2, Push: true, Pull: true, Keys: []uint64{2}, Size: 4},
	}
	got := results(t, options(2, "home", "locality", "reactive"), requests)
	want := map[string][]Epoch{
		// Remote in the first two steps: key 1 by worker 0 (20+12+20), key 0 by
		// worker 1 (20), key 2 by worker 1 (20); then 20 and 24.
		"home": {{92, 92, 0, 0}, {44, 44, 0, 0}},
		// Keys 1 and 2 move to who alone uses them, each 8 to ask for it and 12;
		// key 0, which both use in turns of one, stays and takes 20.
		"locality": {{60, 60, 40, 2}, {0, 0, 0, 0}},
		// Each key moves on its first use elsewhere: key 1 (8 to its home, which
		// has it: 12), key 0 likewise, key 2 likewise.
		"reactive": {{60, 60, 60, 3}, {0, 0, 0, 0}},
	}
	for _, r := range got {
		if !slices.Equal(r.Epochs, want[r.Strategy]) {
			t.Errorf("%s: %v, want %v", r.Strategy, r.Epochs, want[r.Strategy])
		}
	}
	// Where it plans only, keys 1 and 2 move at the end of the first epoch.
	o := options(2, "locality")
	o.Planned = true
	if got, want := results(t, o, requests)[0].Epochs, []Epoch{{92, 92, 0, 0}, {24, 24, 24, 2}}; !slices.Equal(got, want) {
		t.Errorf("locality, planned: %v, want %v", got, want)
	}
}

// What a strategy that never moves anything leaves is the plain sum over all
// requests, and totals are half of what the machines see.
func TestHomeAgainstPlainSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 4).Draw(t, "machines")
		o := options(k, "home", "random", "dppa", "mgp", "locality", "reactive")
		var requests []Request
		want := 0.0
		steps := make([]int, k)
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			w := rapid.IntRange(0, k-1).Draw(t, "worker")
			keys := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 20), 1, 6, rapid.ID).Draw(t, "keys")
			slices.Sort(keys)
			r := Request{Worker: w, Step: steps[w], Keys: keys, Push: rapid.Bool().Draw(t, "push"), Size: 4}
			r.Pull = !r.Push
			for _, key := range keys {
				if int(o.Home(key)) != w {
					want += 12
					if r.Pull {
						want += 8
					}
				}
			}
			requests = append(requests, r)
			if rapid.Bool().Draw(t, "step ends") {
				steps[w]++
			}
		}
		for _, r := range results(t, o, requests) {
			var sum Epoch
			for _, e := range r.Epochs {
				sum.Busiest += e.Busiest
				sum.Total += e.Total
				sum.Migration += e.Migration
				sum.Moves += e.Moves
				if e.Busiest > e.Total+1e-6 || e.Busiest < 2*e.Total/float64(k)-1e-6 || e.Migration > e.Total+1e-6 {
					t.Fatalf("%s: %+v on %d machines", r.Strategy, e, k)
				}
			}
			if math.Abs(sum.Total-r.Sum.Total) > 1e-6 || sum.Moves != r.Sum.Moves {
				t.Fatalf("%s: epochs add up to %+v, not %+v", r.Strategy, sum, r.Sum)
			}
			if r.Strategy == "home" && math.Abs(r.Sum.Total-want) > 1e-3 {
				t.Fatalf("home moves %v bytes, want %v", r.Sum.Total, want)
			}
		}
	})
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"0 steps":     func(o *Options) { o.EpochSteps = 0 },
		"no workers":  func(o *Options) { o.Machine = nil },
		"there are 1": func(o *Options) { o.Machines = 1 },
		"no strategy": func(o *Options) { o.Strategies = []string{"x"} },
		"0 bytes":     func(o *Options) { o.KeyBytes = 0 },
	} {
		o := options(2, "home")
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	s := require.Value(New(options(2, "home")))(t)
	for _, r := range []Request{{Worker: 2}, {Keys: []uint64{1}, Sizes: []uint32{}}} {
		if err := s.Add(&r); err == nil {
			t.Errorf("%+v is taken", r)
		}
	}
}

func TestTable(t *testing.T) {
	var requests []Request
	for step := range 100 {
		for w := range 2 {
			requests = append(requests, Request{Worker: w, Step: step, Pull: true, Keys: []uint64{0, 1, 2}, Size: 4})
		}
	}
	r := results(t, options(2, dynamic.Names()...), requests)
	var text bytes.Buffer
	require.NoError(t, Table(&text, r))
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) > 3+len(r)+tableRows || !strings.Contains(text.String(), "1.00") || !strings.Contains(lines[len(lines)-1], "49") {
		t.Errorf("the table is\n%s", text.String())
	}
}
