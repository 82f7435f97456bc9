package proxy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// host is an agent with the kernel's policies, which outlive it.
type host struct {
	closed  map[uint64]bool // cgroups
	session uint64
	fails   error
	asked   int
	needed  bool   // no cgroup may be opened
	opened  int    // times that one was
	told    func() // called when something was set; may be nil
}

func (h *host) SetFailClosed(_ context.Context, cgroup uint64, on bool) error {
	h.asked++
	switch {
	case h.session == 0:
		return errors.New("no agent")
	case h.fails != nil:
		return h.fails
	case on:
		h.closed[cgroup] = true
	case h.needed:
		h.opened++
		delete(h.closed, cgroup)
	default:
		delete(h.closed, cgroup)
	}
	if h.told != nil {
		h.told()
	}
	return nil
}

func (h *host) Session() uint64 { return h.session }

func newHost(cgroups ...uint64) *host {
	h := &host{closed: map[uint64]bool{}, session: 1}
	for _, id := range cgroups {
		h.closed[id] = true
	}
	return h
}

func (h *host) want(t *testing.T, when string, cgroups ...uint64) {
	t.Helper()
	want := map[uint64]bool{}
	for _, id := range cgroups {
		want[id] = true
	}
	if !maps.Equal(h.closed, want) {
		t.Errorf("%s: cgroups %v fail closed, want %v", when, h.closed, want)
	}
}

// Two runs of jobs in one cgroup, as with an agent's --cgroup: the end of one
// opens nothing while the other needs it closed, in whatever order they come.
func TestTheEndOfARunOpensNothingForAnother(t *testing.T) {
	for _, c := range []struct{ name, second string }{{"of one job", "a:1"}, {"of two jobs", "b:1"}} {
		for _, listener := range []string{"", "a:1"} {
			if listener != "" && c.second != listener {
				continue // the agent does not name a job where there are two
			}
			t.Run(c.name+" listener "+listener, func(t *testing.T) {
				for range 20 { // runs come in no order
					h := newHost()
					var g Guard
					g.Intercepting(h)
					g.Add(GuardedListener{ID: 1, Cgroup: 7, Job: listener})
					g.Need("first", "a:1", true)
					g.apply(t.Context(), nil)
					h.want(t, "the first run has displaced keys", 7)
					g.Need("second", c.second, true)
					g.Need("first", "a:1", false)
					h.needed = true
					for range 20 {
						g.apply(t.Context(), nil)
					}
					if h.needed = false; h.opened > 0 {
						t.Errorf("the cgroup was opened for a moment, %d times", h.opened)
					}
					h.want(t, "the first is over, the second has displaced keys", 7)
					if !g.Guarded("second") || g.Guarded("first") {
						t.Errorf("guarded: first %v, second %v", g.Guarded("first"), g.Guarded("second"))
					}
					g.Need("second", c.second, false)
					g.apply(t.Context(), nil)
					h.want(t, "both are over")
				}
			})
		}
	}
}

// Agent and proxy were killed together: pinned policies stay as they are until this
// process knows that nothing needs them, and no cgroup is opened because it knows
// nothing.
func TestWhatIsPinnedStays(t *testing.T) {
	h := newHost(7, 8)
	h.session = 0
	var g Guard
	g.Intercepting(h)
	if _, ok := g.Serving(); ok {
		t.Error("processes reach the proxy although there is no agent")
	}
	g.Need("first", "a:1", true) // remembered
	g.Need("second", "a:1", true)
	g.apply(t.Context(), nil)
	h.session = 1
	defer g.Add(GuardedListener{ID: 1, Cgroup: 7})()
	defer g.Add(GuardedListener{ID: 2, Cgroup: 8, Job: "c:1"})()
	g.apply(t.Context(), nil)
	if _, ok := g.Serving(); !ok {
		t.Error("processes do not reach the proxy although the agent has named all its listeners")
	}
	h.want(t, "two runs are remembered", 7, 8)
	g.Need("first", "a:1", false)
	g.apply(t.Context(), nil)
	h.want(t, "the first was over", 7, 8)
	g.Need("second", "a:1", false)
	g.apply(t.Context(), nil)
	h.want(t, "both were; of the other cgroup nothing is known", 8)
}

// A new agent hands over its listener before the old one's is taken back, and gets
// all policies again.
func TestAnAgentIsReplaced(t *testing.T) {
	h := newHost()
	var g Guard
	g.Intercepting(h)
	remove := g.Add(GuardedListener{ID: 1, Cgroup: 7, Job: "a:1"})
	g.Need("run", "a:1", true)
	g.apply(t.Context(), nil)
	h.closed, h.session = map[uint64]bool{}, 0
	g.apply(t.Context(), nil)
	h.session = 2
	defer g.Add(GuardedListener{ID: 2, Cgroup: 7, Job: "a:1"})()
	remove()
	g.apply(t.Context(), nil)
	h.want(t, "with a new agent", 7)
	g.Need("later", "a:1", true)
	g.Need("run", "a:1", false)
	g.apply(t.Context(), nil)
	h.want(t, "for a run that came after the old listener was taken back", 7)
}

// What could not be set is said, counted, shown and tried again, closing and
// opening alike.
func TestFailuresAreSaidAndTriedAgain(t *testing.T) {
	var log bytes.Buffer
	h := newHost()
	g := Guard{Log: slog.New(slog.NewTextHandler(&log, nil))}
	g.Intercepting(h)
	defer g.Add(GuardedListener{ID: 1, Cgroup: 7})()
	for _, c := range []struct {
		on    bool
		level string
		want  []uint64
	}{{true, "ERROR", []uint64{7}}, {false, "WARN", nil}} {
		log.Reset()
		before := g.State().Failed
		h.fails = errors.New("the map is full")
		g.Need("run", "a:1", c.on)
		for range 3 {
			g.apply(t.Context(), nil)
		}
		if g.Guarded("run") == c.on {
			t.Errorf("guarded before that was confirmed: %v", c.on)
		}
		s := g.State()
		if s.Failed != before+3 || s.Pending != 1 || !strings.Contains(s.Problem, "the map is full") {
			t.Errorf("shown: %+v", s)
		}
		if n := strings.Count(log.String(), "level="+c.level); n != 1 || !strings.Contains(log.String(), "the map is full") {
			t.Errorf("said %d times: %s", n, log.String())
		}
		h.fails = nil
		g.apply(t.Context(), nil)
		h.want(t, "when it can be set", c.want...)
		if g.Guarded("run") != c.on {
			t.Errorf("then guarded: %v", !c.on)
		}
		if s := g.State(); s.Pending != 0 || s.Problem != "" || s.Closed != len(c.want) {
			t.Errorf("then shown: %+v", s)
		}
		asked := h.asked
		if g.apply(t.Context(), nil); h.asked != asked {
			t.Error("the agent is asked again and again")
		}
	}
}

// A proxy that ends opens nothing: that its connections end says nothing of the
// job.
func TestNothingIsOpenedAtTheEnd(t *testing.T) {
	h := newHost()
	var g Guard
	g.Intercepting(h)
	defer g.Add(GuardedListener{ID: 1, Cgroup: 7})()
	g.Need("run", "a:1", true)
	g.apply(t.Context(), nil)
	g.Freeze()
	g.Need("run", "a:1", false)
	g.apply(t.Context(), nil)
	h.want(t, "shutting down", 7)
}

// Whatever comes in whatever order, a cgroup in which a run needs it is never open
// once the agent has confirmed it, and none stays closed that this process closed
// and nothing needs.
func TestAnyOrderNeverOpensACgroupThatIsNeeded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	runs := []string{"a", "b", "c"}
	for range 300 {
		h := newHost()
		var g Guard
		g.Intercepting(h)
		remove := map[uint64]func(){}
		needed := map[string]bool{}
		next := uint64(1)
		add := func() {
			remove[next] = g.Add(GuardedListener{ID: next, Cgroup: 7})
			next++
		}
		add()
		for range 60 {
			run := runs[random.IntN(len(runs))]
			switch random.IntN(6) {
			case 0, 1:
				needed[run] = random.IntN(2) == 0
				g.Need(run, "a:1", needed[run])
			case 2:
				h.session = uint64(random.IntN(2)) * next // an agent comes or goes
				if random.IntN(2) == 0 {
					h.closed = map[uint64]bool{}
				}
			case 3:
				h.fails = nil
				if random.IntN(2) == 0 {
					h.fails = errors.New("not now")
				}
			case 4: // a listener is replaced
				add()
				next++
				remove[next-2]()
			case 5:
				g.apply(t.Context(), nil)
			}
		}
		h.fails, h.session = nil, next+1
		g.apply(t.Context(), nil)
		want := false
		for _, on := range needed {
			want = want || on
		}
		if h.closed[7] != want {
			t.Fatalf("needed by %v, closed: %v", needed, h.closed)
		}
	}
}

// Run tells an agent that comes late.
func TestRunTellsAnAgentThatComesLate(t *testing.T) {
	h := newHost()
	var g Guard
	g.Intercepting(h)
	g.Add(GuardedListener{ID: 1, Cgroup: 7})
	g.Need("run", "a:1", true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h.told = cancel
	g.Run(ctx, nil)
	h.want(t, "after a while", 7)
}
