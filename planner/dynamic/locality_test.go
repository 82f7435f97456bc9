package dynamic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A plain Locality: rates in a table, all loads and prices anew at every look,
// every machine tried.
type plain struct {
	o      LocalityOptions
	k      int
	speed  []float64
	sums   [][]float64 // [item][machine]
	seen   []float64
	alone  [][]float64 // [item]: uses, lately, of the only machine that made any
	rate   [][]float64 // likewise, bytes a step
	mass   float64
	calm   []int
	aged   float64
	extra  []float64
	owner  []int32 // as the last plan wanted them
	barred []bool
	gains  map[int32][]float64 // of the last plan, by item and machine
}

// sameGain reports whether two lists of moves differ first in where an item goes
// that would gain as much at either place: rounding decides then.
func (s *plain) sameGain(a, b []Move) bool {
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			continue
		}
		if a[i].Item != b[i].Item {
			return false
		}
		gains := s.gains[a[i].Item]
		x, y := gains[a[i].To], gains[b[i].To]
		return math.Abs(x-y) <= 1e-9*(x+y)
	}
	return false
}

func (s *plain) loads(owner []int32) []float64 {
	loads := make([]float64, s.k)
	for p, rates := range s.rate {
		for i, r := range rates {
			if int32(i) != owner[p] {
				loads[i] += r
				loads[owner[p]] += r
			}
		}
	}
	return loads
}

func (s *plain) value(owner []int32) float64 {
	sum, total := 0.0, 0.0
	for i, l := range s.loads(owner) {
		v := (l + s.extra[i]) * s.speed[i]
		sum += math.Pow(v, power)
		total += v
	}
	return math.Pow(sum, 1./power) + s.o.Spread*total/float64(s.k)
}

func (s *plain) plan(it *Items, e *Epoch) []Move {
	for len(s.rate) < it.Len() {
		s.rate, s.sums, s.calm, s.seen = append(s.rate, make([]float64, s.k)), append(s.sums, make([]float64, s.k)), append(s.calm, 0), append(s.seen, 0)
		s.alone = append(s.alone, make([]float64, s.k))
	}
	for i, owner := range s.owner {
		if owner != it.Owner[i] {
			s.calm[i] = max(s.calm[i]-2, 0)
		}
	}
	keep := math.Exp(-e.Steps / s.o.Memory)
	s.mass = s.mass*keep + 1 - keep
	for _, rates := range s.sums {
		sum := 0.0
		for i := range rates {
			rates[i] *= keep
			sum += rates[i]
		}
		for i := range rates {
			if scaleOf() == 1 && (rates[i] <= least*sum || sum <= faint) { // written anew: who hardly uses it is forgotten
				rates[i] = 0
			}
		}
	}
	for p, sums := range s.sums {
		s.use(int32(p), it, e, sums, (1-keep)/e.Steps)
	}
	for p, sums := range s.sums {
		for i, sum := range sums {
			s.rate[p][i] = sum / s.mass
		}
	}
	if s.aged += e.Steps; s.aged >= s.o.Horizon {
		s.aged = 0
		for i := range s.calm {
			s.calm[i] = max(s.calm[i]-1, 0)
			s.seen[i] /= 2
		}
	}
	s.extra = make([]float64, s.k)
	owner := slices.Clone(it.Owner)
	var moves []Move
	for _, item := range s.order(e.Uses) {
		if to, ok := s.best(it, owner, item); ok {
			each := (float64(it.Size[item]) + s.o.Overhead) / s.o.Horizon
			s.extra[owner[item]] += each
			s.extra[to] += each
			owner[item] = to
			s.calm[item] = min(s.calm[item]+2, 16)
			moves = append(moves, Move{item, to})
		}
	}
	s.owner = owner
	return moves
}

// use changes an item's sums: all grow by what was used, in the parts of what
// was known and of what was seen now, each weighed by its number of uses.
func (s *plain) use(p int32, it *Items, e *Epoch, sums []float64, weight float64) {
	now, was, bytes := make([]float64, s.k), 0.0, 0.0
	for _, u := range e.Uses {
		if u.Item == p {
			now[u.Machine] = float64(u.Bytes)
			bytes += now[u.Machine]
		}
	}
	if bytes == 0 {
		return
	}
	for _, sum := range sums {
		was += sum
	}
	uses := bytes / (2 * float64(it.Size[p])) * e.Share
	seen, alone := s.seen[p], s.alone[p]
	for i, n := range now {
		if n < bytes {
			alone[i] = 0
			continue
		}
		others := max(seen-alone[i], 0)
		mine := 0.0
		if was > 0 {
			mine = max(seen*sums[i]/was-alone[i], 0)
		}
		if others > 0 && math.Pow((mine+0.25)/(others+1), alone[i]+uses) < 0.05 {
			seen = 0 // somebody else's now
		}
		alone[i] = min(alone[i]+uses, evidence)
		if seen == 0 {
			s.seen[p] = alone[i] - uses
		}
	}
	for i := range sums {
		part := seen / (seen + uses)
		share := (1 - part) * now[i] / bytes
		if was > 0 {
			share += part * sums[i] / was
		}
		sums[i] = (was + bytes*weight) * share
	}
	s.seen[p] = min(s.seen[p]+uses, evidence)
}

// order is by powers of two of the rate, then by number. Rates that fade in a
// common scale are in the same order but for where the powers lie, so the test
// gives the scale.
var scaleOf func() float64

func (s *plain) order(uses []Use) []int32 {
	var items []int32
	class := map[int32]int{}
	for _, u := range uses {
		if _, ok := class[u.Item]; !ok {
			sum := 0.0
			for _, r := range s.sums[u.Item] {
				sum += r
			}
			class[u.Item] = math.Ilogb(sum / scaleOf())
			items = append(items, u.Item)
		}
	}
	slices.SortStableFunc(items, func(a, b int32) int { return class[b] - class[a] })
	return items
}

// best is the machine of the steepest descent, if the value itself then falls.
func (s *plain) best(it *Items, owner []int32, item int32) (int32, bool) {
	loads := s.loads(owner)
	sum := 0.0
	for i := range loads {
		loads[i] = (loads[i] + s.extra[i]) * s.speed[i]
		sum += math.Pow(loads[i], power)
	}
	price := make([]float64, s.k)
	for i, l := range loads {
		if sum > 0 {
			price[i] = math.Pow(l, power-1) * math.Pow(sum, (1.-power)/power)
		}
		price[i] = (price[i] + s.o.Spread/float64(s.k)) * s.speed[i]
	}
	all := 0.0
	for _, r := range s.rate[item] {
		all += r
	}
	from := owner[item]
	cost := (float64(it.Size[item]) + s.o.Overhead) / s.o.Horizon * (1 + s.o.Margin*math.Pow(2, float64(s.calm[item])))
	to, most := int32(-1), 0.0
	s.gains[item] = make([]float64, s.k)
	for t := range int32(s.k) {
		if t == from || s.barred != nil && s.barred[t] {
			continue
		}
		unknown := all * s.o.Missed / s.seen[item] // uses by the owner that were not seen
		gain := price[from]*(all+unknown-2*(s.rate[item][from]+unknown)-cost) + price[t]*(2*s.rate[item][t]-all-unknown-cost)
		s.gains[item][t] = gain
		if gain > most {
			to, most = t, gain
		}
	}
	if to < 0 {
		return 0, false
	}
	// One use brings price x 2 bytes at the new owner's, or costs as much at the
	// old one's.
	mean, square := 0.0, 0.0
	for i, rate := range s.rate[item] {
		worth := 0.0
		switch int32(i) {
		case from:
			worth = -2 * price[i]
		case to:
			worth = 2 * price[i]
		}
		mean += rate / all * worth
		square += rate / all * worth * worth
	}
	if most < s.o.Doubt*all*math.Sqrt(max(square-mean*mean, 0)/s.seen[item]) {
		return 0, false
	}
	before := s.value(owner)
	owner[item] = to
	s.extra[from] += cost
	s.extra[to] += cost
	after := s.value(owner)
	owner[item] = from
	s.extra[from] -= cost
	s.extra[to] -= cost
	return to, after < before*(1-nothing)
}

func drawUses(t *rapid.T, items, k int) []Use {
	var uses []Use
	for p := range int32(items) {
		for i := range int32(k) {
			if rapid.IntRange(0, 3).Draw(t, "used") == 0 {
				// Numbers that are not alike by chance: what is equal is rounded
				// otherwise when it is added up in another order.
				bytes := rapid.Float64Range(1, 1000).Draw(t, "bytes")
				bytes *= 1 + float64(mix(math.Float64bits(bytes), uint64(p)<<32|uint64(i)|uint64(len(uses))<<16)%1000)/1e5
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
			e := &Epoch{Steps: float64(rapid.IntRange(1, 30).Draw(t, "steps")), Share: rapid.Float64Range(0.1, 1).Draw(t, "share"), Uses: drawUses(t, it.Len(), k)}
			moves, err := l.Plan(it, e)
			if err != nil {
				t.Fatal(err)
			}
			want := slow.plan(it, e)
			if slow.sameGain(moves, want) {
				return
			}
			if !slices.Equal(moves, want) {
				t.Fatalf("it moves %v, want %v", moves, want)
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
			moves, err := l.Plan(it, &Epoch{Steps: 10, Uses: tc.uses(epoch)})
			if err != nil {
				t.Fatal(err)
			}
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
		if _, err := l.Plan(it, &Epoch{Steps: 10, Uses: []Use{{0, int32(epoch / 100 % 64), 100}}}); err != nil {
			t.Fatal(err)
		}
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
				moves, err := l.Plan(it, e)
				if err != nil {
					b.Fatal(err)
				}
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
