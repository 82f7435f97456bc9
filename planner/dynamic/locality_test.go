package dynamic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/splitmix"
	"github.com/psidecar/psidecar/test/require"
)

func drawUses(t *rapid.T, items, k int) []Use {
	var uses []Use
	for p := range int32(items) {
		for i := range int32(k) {
			if rapid.IntRange(0, 3).Draw(t, "used") == 0 {
				// Numbers that are not alike by chance: what is equal is rounded
				// otherwise when it is added up in another order.
				bytes := rapid.Float64Range(1, 1000).Draw(t, "bytes")
				bytes *= 1 + float64(splitmix.Next(math.Float64bits(bytes)+(uint64(p)<<32|uint64(i)|uint64(len(uses))<<16)*splitmix.Golden)%1000)/1e5
				uses = append(uses, Use{p, i, float32(bytes)})
			}
		}
	}
	return uses
}

func TestLocalityAgainstPlain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 5).Draw(t, "machines")
		o := Options{Machines: k, Locality: LocalityOptions{Horizon: 30, Memory: rapid.Float64Range(1, 40).Draw(t, "memory"), Overhead: rapid.Float64Range(0, 20).Draw(t, "overhead"), Missed: rapid.Float64Range(0.1, 3).Draw(t, "missed")}}
		if rapid.IntRange(0, 3).Draw(t, "moves are bounded") == 0 {
			o.Locality.MaxMoves = rapid.IntRange(1, 5).Draw(t, "moves")
		}
		if rapid.Bool().Draw(t, "speeds differ") {
			for range k {
				o.Speed = append(o.Speed, rapid.Float64Range(1, 10).Draw(t, "speed"))
			}
		}
		if k > 1 && rapid.Bool().Draw(t, "one has no server") {
			o.Barred = make([]bool, k)
			o.Barred[rapid.IntRange(0, k-1).Draw(t, "which")] = true
		}
		l := NewLocality(o)
		scaleOf = func() float64 { return l.rates.scale }
		slow := &plain{o: l.o, k: k, speed: l.speed, barred: o.Barred, gains: map[int32][]float64{}}
		it := drawItems(t, rapid.IntRange(1, 8).Draw(t, "items"), k)
		for range rapid.IntRange(1, 12).Draw(t, "epochs") {
			e := &Epoch{Steps: float64(rapid.IntRange(1, 30).Draw(t, "steps")), Share: rapid.Float64Range(0.1, 1).Draw(t, "share"), Uses: drawUses(t, it.Len(), k), MaxGroups: rapid.IntRange(0, 4).Draw(t, "groups"), FewGroups: rapid.IntRange(0, 3).Draw(t, "few groups")}
			for item := range int32(it.Len()) {
				for machine := range int32(k) {
					if rapid.IntRange(0, 9).Draw(t, "left") == 0 {
						e.Left = append(e.Left, Departure{item, machine})
						e.Uses = slices.DeleteFunc(e.Uses, func(u Use) bool { return u.Item == item && u.Machine == machine })
					}
				}
			}
			moves := require.Value(l.Plan(it, e))(t)
			want := slow.plan(it, e)
			if !slices.Equal(moves, want) {
				if slow.sameGain(moves, want) || slow.tied {
					return
				}
				t.Fatalf("it moves %v, want %v", moves, want)
			}
			groups := map[Move]bool{}
			for _, m := range moves {
				groups[Move{it.Owner[m.Item], m.To}] = true
			}
			if n, more := l.Groups(); n != len(groups) || more != slow.more && !slow.tied {
				t.Fatalf("it says that it has %d groups and leaves out others: %v; it has %d, %v", n, more, len(groups), slow.more)
			}
			planned := slices.Clone(it.Owner)
			for i, m := range moves {
				planned[m.Item] = m.To
				if i%3 != 2 { // some moves are refused
					it.Owner[m.Item] = m.To
				}
			}
			for i, load := range slow.loads(planned) {
				if got := l.Loads()[i]; math.Abs(got-load) > 1e-4*(1+load) {
					t.Fatalf("machine %d is said to move %g, want %g", i, got, load)
				}
			}
			if rapid.Bool().Draw(t, "grows") {
				more := drawItems(t, 1, k)
				it.Owner, it.Home, it.Size = append(it.Owner, more.Owner...), append(it.Home, more.Home...), append(it.Size, more.Size...)
			}
		}
	})
}

// An item that everybody uses alike stays; one whose user changes follows once;
// one whose user changes all the time is left alone after a few moves.
func TestLocalityHysteresis(t *testing.T) {
	for name, tc := range map[string]struct {
		uses  func(epoch int) []Use
		least int
		most  int
	}{
		"shared": {func(int) []Use { return []Use{{0, 0, 500}, {0, 1, 500}, {0, 2, 500}} }, 0, 0},
		"another user": {func(epoch int) []Use {
			if epoch < 50 {
				return []Use{{0, 1, 500}}
			}
			return []Use{{0, 2, 500}}
		}, 2, 2},
		"restless": {func(epoch int) []Use { return []Use{{0, int32(epoch / 2 % 3), 60}} }, 1, 12},
	} {
		it := &Items{Owner: []int32{0}, Home: []int32{0}, Size: []float32{20}}
		l := NewLocality(Options{Machines: 3})
		moved := 0
		for epoch := range 100 {
			moves := require.Value(l.Plan(it, &Epoch{Steps: 10, Uses: tc.uses(epoch)}))(t)
			for _, m := range moves {
				it.Owner[m.Item] = m.To
				moved++
			}
		}
		if moved < tc.least || moved > tc.most {
			t.Errorf("%s: moved %d times, want %d to %d", name, moved, tc.least, tc.most)
		}
	}
}

// After very many epochs the numbers are still in range, and who has not used
// an item for long is forgotten.
func TestLocalityLongRun(t *testing.T) {
	it := &Items{Owner: []int32{0}, Home: []int32{0}, Size: []float32{20}}
	l := NewLocality(Options{Machines: 64})
	for epoch := range 5000 {
		require.Value(l.Plan(it, &Epoch{Steps: 10, Uses: []Use{{0, int32(epoch / 100 % 64), 100}}}))(t)
		if n := len(l.rates.arena); n > 256 {
			t.Fatalf("epoch %d: %d places for one item's users", epoch, n)
		}
	}
	for i, load := range l.Loads() {
		if math.IsNaN(load) || load < -1e-6 || load > 100 {
			t.Errorf("machine %d moves %g", i, load)
		}
	}
}

// world is a graph of n items with users each on 16 machines.
func world(n, users int) (*Items, *Epoch) {
	const k = 16
	r := rand.New(rand.NewPCG(1, 2))
	it, e := &Items{}, &Epoch{Steps: 10}
	for i := range int32(n) {
		home := i * k / int32(n)
		it.Home, it.Owner, it.Size = append(it.Home, home), append(it.Owner, home), append(it.Size, 16)
		first := r.Int32N(k)
		for u := range int32(users) {
			e.Uses = append(e.Uses, Use{i, (first + u) % k, float32(r.ExpFloat64() * 100)})
		}
		slices.SortFunc(e.Uses[len(e.Uses)-users:], func(a, b Use) int { return int(a.Machine - b.Machine) })
	}
	return it, e
}

// BenchmarkLocality is a decision after the first: all edges were used again,
// a tenth of them differently.
func BenchmarkLocality(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprintf("items=%d,edges=%d", n, 10*n), func(b *testing.B) {
			it, e := world(n, 10)
			l := NewLocality(Options{Machines: 16})
			plan := func() int {
				moves := require.Value(l.Plan(it, e))(b)
				for _, m := range moves {
					it.Owner[m.Item] = m.To
				}
				return len(moves)
			}
			first := plan()
			r := rand.New(rand.NewPCG(3, 4))
			moved := 0
			var longest time.Duration
			for b.Loop() {
				b.StopTimer()
				for range len(e.Uses) / 10 {
					e.Uses[r.IntN(len(e.Uses))].Bytes = float32(r.ExpFloat64() * 100)
				}
				b.StartTimer()
				began := time.Now()
				moved += plan()
				longest = max(longest, time.Since(began))
			}
			b.ReportMetric(float64(first), "first-moves")
			b.ReportMetric(float64(moved)/float64(b.N), "moves/op")
			b.ReportMetric(longest.Seconds(), "longest-s")
		})
	}
}
