package migrate

import (
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// search visits every state that can be reached from the first, in the order of
// how many actions lead there.
type search struct {
	t     *testing.T
	first *world
	most  int // states at which it gives up
	seeds [2]maphash.Seed
	known map[digest]int32
	// Of each state: from which it was reached first, by which of its actions,
	// and from which it can be reached.
	visits []visit
	edges  [][]int32
	ends   []int32
	depth  int
}

type visit struct {
	from   int32
	action int16
}

// reached is a state and the digests of those that follow.
type reached struct {
	number  int32
	world   *world
	next    []*world
	digests []digest
	end     bool
}

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// explore reports the first state in which something is wrong, or from which the
// end cannot be reached. It returns the digests of all ends; nil where there were
// more states than most.
func explore(t *testing.T, first *world, most int) (ends map[digest]bool) {
	s := &search{t: t, first: first, most: most, known: map[digest]int32{}, seeds: seeds}
	first.rehash(s.seeds, 3, 3)
	s.add(first.digest(s.seeds), visit{from: -1})
	level := []*reached{{world: first}}
	for ; len(level) > 0; s.depth++ {
		s.expand(level)
		var next []*reached
		for i, r := range level {
			level[i] = nil
			next = s.merge(r, next)
			if len(s.visits) > most {
				t.Logf("stopped after %d states, %d actions deep", len(s.visits), s.depth)
				return nil
			}
		}
		level = next
	}
	t.Logf("complete: %d states, %d of them ends, at most %d actions deep", len(s.visits), len(s.ends), s.depth-1)
	s.checkEnds()
	ends = map[digest]bool{}
	at := map[int32]bool{}
	for _, n := range s.ends {
		at[n] = true
	}
	for d, n := range s.known {
		if at[n] {
			ends[d] = true
		}
	}
	return ends
}

// expand does all actions of the states of a level, on all cores.
func (s *search) expand(level []*reached) {
	var group sync.WaitGroup
	cores := runtime.GOMAXPROCS(0)
	for core := range cores {
		group.Go(func() {
			for i := core; i < len(level); i += cores {
				r := level[i]
				if r.end = r.world.done(); r.world.Failure != "" {
					continue
				}
				for _, a := range r.world.actions() {
					n := r.world.after(&a)
					n.rehash(s.seeds, a.hosts, a.servers())
					r.next, r.digests = append(r.next, n), append(r.digests, n.digest(s.seeds))
				}
			}
		})
	}
	group.Wait()
}

// merge adds what follows a state, and appends to next what is new.
func (s *search) merge(r *reached, next []*reached) []*reached {
	if r.end {
		s.ends = append(s.ends, r.number)
	}
	if r.world.Failure != "" {
		s.t.Fatalf("%s, after\n%s", r.world.Failure, s.trace(r.number))
	}
	for i, d := range r.digests {
		n, ok := s.known[d]
		if !ok {
			n = s.add(d, visit{r.number, int16(i)})
			next = append(next, &reached{number: n, world: r.next[i]})
		}
		s.edges[n] = append(s.edges[n], r.number)
	}
	return next
}

func (s *search) add(d digest, v visit) int32 {
	n := int32(len(s.visits))
	s.known[d] = n
	s.visits, s.edges = append(s.visits, v), append(s.edges, nil)
	return n
}

// trace names the actions that lead to a state.
func (s *search) trace(at int32) string {
	var path []int16
	for ; at > 0; at = s.visits[at].from {
		path = append(path, s.visits[at].action)
	}
	var names []string
	w := s.first
	for i := len(path) - 1; i >= 0; i-- {
		a := w.actions()[path[i]]
		names = append(names, "  "+a.String())
		w = w.after(&a)
	}
	return strings.Join(names, "\n")
}

// checkEnds finds states from which no end can be reached.
func (s *search) checkEnds() {
	reaches := make([]bool, len(s.visits))
	for ends := slices.Clone(s.ends); len(ends) > 0; {
		at := ends[len(ends)-1]
		if ends = ends[:len(ends)-1]; reaches[at] {
			continue
		}
		reaches[at] = true
		ends = append(ends, s.edges[at]...)
	}
	for at, ok := range reaches {
		if !ok {
			s.t.Fatalf("the job cannot end any more, after\n%s", s.trace(int32(at)))
		}
	}
}

// TestReduction shows that the search that leaves out orders finds the same ends
// as the one that does not.
func TestReduction(t *testing.T) {
	for _, b := range []budget{{}, {Loss: 1}} {
		some := explore(t, newWorld(true, 1, []int{0}, b), 1e6)
		first := newWorld(true, 1, []int{0}, b)
		first.unreduced = true
		if all := explore(t, first, 1e6); len(all) == 0 || !maps.Equal(some, all) {
			t.Errorf("budget %+v: %d ends, and %d where no order is left out", b, len(some), len(all))
		}
	}
}

// exploration is what can happen in a case of TestExplore.
type exploration struct {
	resend bool
	steps  int // of each worker: a push, a pull
	moves  []int
	budget budget
	rarely bool // takes minutes
}

// TestExplore runs through all interleavings of two workers, two servers, two
// keys and up to three moves, with what can go wrong in each case: so many
// messages lost, so many hosts' timers running out early, so many proxies or
// planners killed, so many moves that expire. Whatever is lost or killed can be
// so at any moment. With PSIDECAR_EXPLORE=N also the large cases are searched, up
// to N states of each (some 3 kB each). Beyond what can be searched whole, walks
// take random ways through longer runs in which everything goes wrong.
func TestExplore(t *testing.T) {
	most := 2_000_000
	large := os.Getenv("PSIDECAR_EXPLORE")
	if large != "" {
		n, err := strconv.Atoi(large)
		if err != nil {
			t.Fatalf("PSIDECAR_EXPLORE=%q: want how many states to visit in each case", large)
		}
		most = n
	}
	for name, e := range map[string]exploration{
		"three moves":                    {steps: 2, moves: []int{0, 1, 2}},
		"two moves that expire":          {steps: 2, moves: []int{0, 1}, budget: budget{Expire: 1}},
		"resend, two moves":              {resend: true, steps: 2, moves: []int{0, 1}},
		"resend, loss":                   {resend: true, steps: 1, moves: []int{0}, budget: budget{Loss: 1}},
		"resend, repeated":               {resend: true, steps: 1, moves: []int{0}, budget: budget{Repeat: 1}},
		"resend, crash":                  {resend: true, steps: 1, moves: []int{0}, budget: budget{Crash: 1}},
		"resend, two moves, crash":       {resend: true, steps: 1, moves: []int{0, 1}, budget: budget{Crash: 1}},
		"resend, crash and loss":         {resend: true, steps: 1, moves: []int{0}, budget: budget{Crash: 1, Loss: 1}},
		"resend, crash and repeated":     {resend: true, steps: 1, moves: []int{0}, budget: budget{Crash: 1, Repeat: 1}},
		"resend, loss and repeated":      {resend: true, steps: 1, moves: []int{0}, budget: budget{Loss: 1, Repeat: 1}},
		"resend, pushes and pulls, loss": {resend: true, steps: 2, moves: []int{0}, budget: budget{Loss: 1}},

		"three moves that expire":            {steps: 2, moves: []int{0, 1, 2}, budget: budget{Expire: 1}, rarely: true},
		"resend, three moves":                {resend: true, steps: 2, moves: []int{0, 1, 2}, rarely: true},
		"resend, pushes and pulls, repeated": {resend: true, steps: 2, moves: []int{0}, budget: budget{Repeat: 1}, rarely: true},
		"resend, pushes and pulls, crash":    {resend: true, steps: 2, moves: []int{0}, budget: budget{Crash: 1}, rarely: true},
		"resend, two crashes":                {resend: true, steps: 1, moves: []int{0}, budget: budget{Crash: 2}, rarely: true},
		"resend, three moves, crash":         {resend: true, steps: 1, moves: []int{0, 1, 2}, budget: budget{Crash: 1}, rarely: true},
		"resend, crash, loss, repeated":      {resend: true, steps: 1, moves: []int{0}, budget: budget{Crash: 1, Loss: 1, Repeat: 1}, rarely: true},
		"resend, all":                        {resend: true, steps: 2, moves: []int{0, 1, 2}, budget: budget{Crash: 1, Loss: 1, Repeat: 1, Expire: 1}, rarely: true},
	} {
		t.Run(name, func(t *testing.T) {
			if e.rarely && large == "" {
				t.Skip("takes minutes: set PSIDECAR_EXPLORE to the number of states to visit at most")
			}
			if explore(t, newWorld(e.resend, e.steps, e.moves, e.budget), most) == nil && !e.rarely {
				t.Errorf("there are more than %d states: this case is to be searched whole", most)
			}
		})
	}
}

// TestWalks takes random ways through runs of more requests, with three moves.
func TestWalks(t *testing.T) {
	for name, c := range map[string]struct {
		resend bool
		budget budget
	}{
		"moves that expire": {false, budget{Expire: 2}},
		"all":               {true, budget{Crash: 3, Loss: 3, Repeat: 3, Expire: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(300) {
				walk(t, newWorld(c.resend, 6, []int{0, 1, 2}, c.budget), rand.New(rand.NewPCG(seed, 1)))
			}
		})
	}
}
