package migrate

import (
	"hash/maphash"
	"math/rand/v2"
	"os"
	"runtime"
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

// explore reports the first state in which something is wrong, or from which the
// end cannot be reached, and whether it has seen all.
func explore(t *testing.T, first *world, most int) {
	s := &search{t: t, first: first, most: most, known: map[digest]int32{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
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
				t.Logf("stopped after %d states, %d actions deep: set PSIDECAR_EXPLORE to a larger number for more", len(s.visits), s.depth)
				return
			}
		}
		level = next
	}
	t.Logf("complete: %d states, %d of them ends, at most %d actions deep", len(s.visits), len(s.ends), s.depth-1)
	s.checkEnds()
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
	for ends := s.ends; len(ends) > 0; {
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

// TestExplore runs through all interleavings of two workers, two servers, two
// keys and up to three moves, with what can go wrong in each case.
func TestExplore(t *testing.T) {
	most := 3_000
	if s := os.Getenv("PSIDECAR_EXPLORE"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("PSIDECAR_EXPLORE=%q: want how many states to visit in each case", s)
		}
		most = n
	}
	for _, c := range []struct {
		name   string
		resend bool
		steps  int
		moves  []int
		budget budget
	}{
		{"three moves", false, 2, []int{0, 1, 2}, budget{}},
		{"three moves that expire", false, 2, []int{0, 1, 2}, budget{Expire: 1}},
		{"resend", true, 2, []int{0}, budget{}},
		{"resend, repeated", true, 2, []int{0, 1}, budget{Repeat: 1}},
		{"resend, loss", true, 2, []int{0, 1}, budget{Loss: 1}},
		{"resend, crash", true, 2, []int{0, 1}, budget{Crash: 1}},
		{"resend, two crashes", true, 2, []int{0}, budget{Crash: 2}},
		{"resend, crash and loss", true, 2, []int{0, 1}, budget{Crash: 1, Loss: 1}},
		{"resend, all", true, 2, []int{0, 1, 2}, budget{Crash: 1, Loss: 1, Repeat: 1, Expire: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			explore(t, newWorld(c.resend, c.steps, c.moves, c.budget), most)
			for seed := range uint64(min(most/10, 1000)) {
				b := c.budget
				walk(t, newWorld(c.resend, 3*c.steps, append([]int(nil), c.moves...), b), rand.New(rand.NewPCG(seed, 1)))
			}
		})
	}
}
