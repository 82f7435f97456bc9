package migrate

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// exploration is what can happen in a case of TestExploreAllInterleavings.
type exploration struct {
	steps  int // of each worker: a push, a pull
	budget budget
	plain  bool // without PS_RESEND
	orders bool // servers handle what a worker has sent in any order
	rarely bool // takes minutes
}

func (e exploration) String() string {
	s := fmt.Sprintf("%d requests, %s", e.steps, e.budget)
	if e.plain {
		s += ", without PS_RESEND"
	}
	if e.orders {
		s += ", servers take in any order"
	}
	return s
}

// explorations are the cases that are searched whole.
var explorations = []exploration{
	{steps: 2, plain: true, budget: budget{Moves: 3}},
	{steps: 2, plain: true, budget: budget{Moves: 3, Expire: 1}},
	{steps: 2, plain: true, orders: true, budget: budget{Moves: 3}},
	{steps: 1, plain: true, orders: true, budget: budget{Moves: 3, Expire: 1}},
	{steps: 1, plain: true, budget: budget{Moves: 2, Over: 1}},
	{steps: 2, budget: budget{Moves: 3}},
	{steps: 2, budget: budget{Moves: 3, Expire: 1}},
	{steps: 1, budget: budget{Moves: 2, Over: 1}},
	{steps: 1, budget: budget{Moves: 1, Crash: 1, Over: 1}},
	{steps: 1, budget: budget{Moves: 1, Loss: 1, Repeat: 1, Over: 1}},
	{steps: 2, budget: budget{Moves: 2, Loss: 1}},
	{steps: 2, budget: budget{Moves: 2, Repeat: 1}},
	{steps: 1, budget: budget{Moves: 3, Crash: 1}},
	{steps: 1, budget: budget{Moves: 2, Loss: 1, Repeat: 1}},
	{steps: 1, budget: budget{Moves: 1, Loss: 1, Repeat: 1, Crash: 1}},

	{steps: 1, plain: true, budget: budget{Moves: 2, Lose: 1}},
	{steps: 1, budget: budget{Moves: 2, Lose: 1}},
	{steps: 1, budget: budget{Moves: 1, Crash: 1, Lose: 1}},
	{steps: 1, budget: budget{Moves: 1, Loss: 1, Repeat: 1, Lose: 1}},

	{steps: 1, budget: budget{Moves: 1, Crash: 2, Lose: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 2, Crash: 1, Lose: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 2, Crash: 2, Lose: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 1, Loss: 1, Crash: 1, Lose: 1}, rarely: true},
	{steps: 2, budget: budget{Moves: 3, Loss: 1}, rarely: true},
	{steps: 2, budget: budget{Moves: 3, Repeat: 1}, rarely: true},
	{steps: 2, budget: budget{Moves: 3, Crash: 1}, rarely: true},
	{steps: 2, plain: true, budget: budget{Moves: 3, Over: 1}, rarely: true},
	{steps: 2, budget: budget{Moves: 3, Over: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 3, Loss: 1, Over: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 3, Repeat: 1, Over: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 3, Crash: 1, Over: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 1, Crash: 3}, rarely: true},
	{steps: 2, budget: budget{Moves: 1, Loss: 1, Repeat: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 3, Loss: 1, Repeat: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 3, Loss: 1, Crash: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 3, Repeat: 1, Crash: 1}, rarely: true},
	{steps: 1, budget: budget{Moves: 2, Loss: 1, Repeat: 1, Crash: 1}, rarely: true},
}

// TestExploreAllInterleavings runs through all interleavings of two workers, two servers, two
// keys and up to three moves of either, with what can go wrong in each case: so
// many messages lost, so many hosts' timers running out early, so many proxies or
// planners killed, so many moves that expire, so many hosts on which the job is
// over, or seems so for a while, with what was on its way there lost or not. Whatever is lost or killed can be
// so at any moment. With PSIDECAR_EXPLORE=N also the large cases are searched, up
// to N worlds of each (some 100 bytes each). Beyond what can be searched whole,
// walks take random ways through longer runs in which everything goes wrong.
func TestExploreAllInterleavings(t *testing.T) {
	most := 2_000_000
	large := os.Getenv("PSIDECAR_EXPLORE")
	if large != "" {
		n, err := strconv.Atoi(large)
		if err != nil {
			t.Fatalf("PSIDECAR_EXPLORE=%q: want how many worlds to visit in each case", large)
		}
		most = n
	}
	for _, e := range explorations {
		t.Run(e.String(), func(t *testing.T) {
			if e.rarely {
				require.Asked(t, "PSIDECAR_EXPLORE", "the number of worlds to visit at most")
			}
			if !e.rarely {
				t.Parallel()
			}
			began := time.Now()
			m := &model{parts: newParts(!e.plain, false, sound), anyOrder: e.orders}
			f := explore(m, newWorld(m.parts, e.steps, e.budget), most)
			switch {
			case f.failure != "":
				t.Fatal(f.failure)
			case !f.whole:
				t.Fatalf("there are more than %d worlds: this case is to be searched whole", most)
			}
			t.Logf("complete: %d worlds, %d different ends, %d parts, %d turns, %.1f s", f.worlds, len(f.ends), len(m.all), len(m.turns), time.Since(began).Seconds())
		})
	}
}

// TestReduction shows that the search that leaves out orders, forgets names that
// nothing uses and takes one key for the other finds the same ends as the one that
// does not.
func TestReduction(t *testing.T) {
	require.Time(t)
	for _, e := range []exploration{
		{steps: 1, budget: budget{Moves: 1}},
		{steps: 1, budget: budget{Moves: 2}},
		{steps: 2, budget: budget{Moves: 1}},
		{steps: 1, budget: budget{Moves: 1, Loss: 1}},
		{steps: 1, budget: budget{Moves: 1, Repeat: 1}},
		{steps: 1, budget: budget{Moves: 1, Crash: 1}},
		{steps: 1, budget: budget{Moves: 1, Expire: 1}},
		{steps: 1, budget: budget{Moves: 1, Loss: 1, Repeat: 1}},
		{steps: 1, budget: budget{Moves: 1, Loss: 1, Crash: 1}},
		{steps: 1, budget: budget{Moves: 1, Over: 1}},
		{steps: 1, budget: budget{Moves: 1, Crash: 1, Over: 1}},
		{steps: 1, budget: budget{Moves: 1, Lose: 1}},
	} {
		t.Run(e.String(), func(t *testing.T) {
			t.Parallel()
			some, all := searched(e.steps, e.budget, false, sound), searched(e.steps, e.budget, true, sound)
			if some.failure != "" || all.failure != "" {
				t.Fatal(some.failure, all.failure)
			}
			t.Logf("%d worlds of %d, %d ends", some.worlds, all.worlds, len(all.ends))
			if !some.whole || !all.whole || len(all.ends) == 0 {
				t.Fatal("not searched whole, or no end")
			}
			either := bothKeys(some.ends)
			for e := range either {
				if !all.ends[e] {
					t.Errorf("%+v is no end where nothing is left out", e)
				}
			}
			for e := range all.ends {
				if !covered(e, either) {
					t.Errorf("%+v is not found", e)
				}
			}
		})
	}
}

// searched is a whole search, with nothing left out where all is true.
func searched(steps int, b budget, all bool, f fault) found {
	m := &model{parts: newParts(true, all, f), orders: all}
	return explore(m, newWorld(m.parts, steps, b), 1_000_000)
}

// bothKeys adds to each end the one in which the keys have changed places.
func bothKeys(ends map[end]bool) map[end]bool {
	all := maps.Clone(ends)
	for e := range ends {
		swap := func(all *[2]float32) { all[0], all[1] = all[1], all[0] }
		e.Owners[0], e.Owners[1] = e.Owners[1], e.Owners[0]
		for i := range 2 {
			swap(&e.Sums[i])
			swap(&e.Read[i])
		}
		all[e] = true
	}
	return all
}

// covered reports whether an end is among those found, perhaps with more of the
// budget left.
func covered(e end, all map[end]bool) bool {
	for other := range all {
		b := other.Budget
		if other.Budget = e.Budget; other == e && b.covers(e.Budget) {
			return true
		}
	}
	return false
}

// TestFaultsAreFoundByTheSearch shows that the search finds faults of a site, whether or
// not orders are left out.
func TestFaultsAreFoundByTheSearch(t *testing.T) {
	for f, c := range map[fault]struct {
		steps  int
		budget budget
	}{
		acksEarly:     {1, budget{Moves: 1, Crash: 1}},
		flipsEarly:    {1, budget{Moves: 1, Crash: 1}},
		quietEarly:    {1, budget{Moves: 1}},
		joinsAlone:    {1, budget{Moves: 1, Crash: 1}},
		forgetsSeen:   {1, budget{Moves: 1, Loss: 1}},
		forgetsOpened: {1, budget{Moves: 1, Crash: 1}},
		teachesHeld:   {1, budget{Moves: 1, Crash: 1, Lose: 1}},
		dropsRecorded: {1, budget{Moves: 1, Over: 1}},
	} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			some, all := searched(c.steps, c.budget, false, f), searched(c.steps, c.budget, true, f)
			if some.failure == "" || all.failure == "" {
				t.Fatalf("%d worlds and nothing wrong: %q; %d worlds where nothing is left out: %q", some.worlds, some.failure, all.worlds, all.failure)
			}
			t.Logf("found after %d worlds, and %d where nothing is left out: %s", some.worlds, all.worlds, strings.SplitN(some.failure, "\n", 2)[0])
		})
	}
}

// TestWalksThroughLongerRuns takes random ways through runs of more requests, with three moves.
func TestWalksThroughLongerRuns(t *testing.T) {
	for name, c := range map[string]struct {
		resend bool
		budget budget
	}{
		"moves that expire": {false, budget{Moves: 3, Expire: 2, Over: 1}},
		"all":               {true, budget{Moves: 3, Crash: 3, Loss: 3, Repeat: 3, Expire: 2, Over: 2}},
		"stores lost":       {true, budget{Moves: 3, Crash: 3, Loss: 3, Repeat: 3, Expire: 2, Over: 1, Lose: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &model{parts: newParts(c.resend, false, sound), first: c.budget, orders: true}
			for seed := range uint64(300) {
				if failure := walk(m, newWorld(m.parts, 6, c.budget), 8, rand.New(rand.NewPCG(seed, 1))); failure != "" {
					t.Fatal(failure)
				}
			}
		})
	}
}

// TestWalksPast takes ways on which connections between a worker and the servers,
// one way or both, are made past a proxy that is dead, and stay so when it is
// back. Requests that were answered past it it takes for being under way: moves
// wait for them until they expire, and what is asked of all others still holds.
func TestWalksPast(t *testing.T) {
	b := budget{Moves: 3, Crash: 3, Repeat: 3, Expire: 200, Past: 2}
	for _, f := range []fault{sound, asksPast} {
		m := &model{parts: newParts(true, false, f), first: b, orders: true}
		failure, walks := "", 0
		for seed := uint64(0); seed < 300 && failure == ""; seed++ {
			walks++
			failure = walk(m, newWorld(m.parts, 6, b), 3, rand.New(rand.NewPCG(seed, 2)))
		}
		switch {
		case f == sound && failure != "":
			t.Error(failure)
		case f != sound && failure == "":
			t.Errorf("with a site that %v nothing is wrong", f)
		case f != sound:
			t.Logf("%v is found after %d walks: %s", f, walks, strings.SplitN(failure, "\n", 2)[0])
		}
	}
}

// walk takes one random way from the start to the end. What goes wrong in a world
// goes wrong early in some walks and late in others. It returns the fault, and the
// events that led there.
func walk(m *model, w world, rarely int, rng *rand.Rand) (failure string) {
	const patience = 5000
	var taken []string
	tell := func() string { return strings.Join(taken[max(0, len(taken)-150):], "\n  ") }
	for range patience {
		all := m.deliveries(&w, nil)
		if rng.IntN(rarely) == 0 { // most steps are nothing that goes wrong
			all = m.disturbances(&w, all)
			if w.Budget.Loss > 0 {
				all = m.losses(&w, all, 0)
			}
		}
		a := all[rng.IntN(len(all))]
		taken = append(taken, a.String())
		next, failure, ok := m.after(&w, a)
		done, wrong := m.done(&next)
		switch {
		case failure+wrong != "":
			return fmt.Sprintf("%s, after\n  %s", failure+wrong, tell())
		case !ok:
			continue
		case done && next.calm():
			return ""
		}
		w = next
	}
	return fmt.Sprintf("no end after %d steps; the last are\n  %s", patience, tell())
}
