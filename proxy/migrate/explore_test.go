package migrate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/proxy/route"
)

// An action changes a copy of a world: these hosts (bits) and this server of it,
// besides what is on its way.
type action struct {
	format string
	args   []any
	do     func(*world)
	hosts  uint8
	server int // -1: none
}

func (a *action) String() string { return fmt.Sprintf(a.format, a.args...) }

// host is what an action of a host's site or worker changes.
func host(i int) action { return action{hosts: 1 << i, server: -1} }

// adder takes another action that is possible.
type adder func(a action, do func(*world), format string, args ...any)

// actions are all that can happen now, but for those whose order makes no
// difference: when nothing can be lost or repeated any more, an ACK that waits
// for a server does nothing that anything else could notice before it is taken.
// It only ends a repetition, and those begin when nothing else is on its way. So
// it is taken at once.
func (w *world) actions() (all []action) {
	if b := w.Budget; w.Resend && !w.unreduced && b.Loss+b.Repeat+b.Crash == 0 && !w.drops() {
		for i := range 2 {
			for s := range 2 {
				if q := w.Up[s][i]; len(q) > 0 && len(q[0]) == 1 && w.Sites[i] != nil {
					return []action{{"server %d takes an ACK of worker %d", []any{s, i}, func(w *world) { w.fromWorker(s, i) }, 0, s}}
				}
			}
		}
	}
	add := func(a action, do func(*world), format string, args ...any) {
		a.do, a.format, a.args = do, format, args
		all = append(all, a)
	}
	for i := range 2 {
		for s := range 2 {
			if len(w.Up[s][i]) > 0 {
				add(action{server: s}, func(w *world) { w.fromWorker(s, i) }, "server %d takes from worker %d", s, i)
			}
			if len(w.Down[s][i]) > 0 {
				add(host(i), func(w *world) {
					m := w.Down[s][i][0]
					w.Down[s][i] = w.Down[s][i][1:]
					w.siteDown(i, s, m)
				}, "site %d takes from server %d", i, s)
			}
		}
		if len(w.ToSite[i]) > 0 {
			add(host(i), func(w *world) {
				m := w.ToSite[i][0]
				w.ToSite[i] = w.ToSite[i][1:]
				if w.Sites[i] != nil {
					w.Sites[i].Receive(names[1-i], m.M)
					w.settle(i)
				}
			}, "site %d hears %d", i, w.ToSite[i][0].M.Kind)
		}
		if len(w.ToStore[i]) > 0 {
			add(host(i), func(w *world) { w.record(i) }, "the store records for %d", i)
		}
		if w.Asked[i] {
			add(action{server: -1}, func(w *world) { w.Asked[i], w.Told[i] = false, append([]int32(nil), w.Owners[:]...) }, "the store looks for %d", i)
		}
		if w.Told[i] != nil {
			add(host(i), func(w *world) {
				owners := w.Told[i]
				w.Told[i] = nil
				w.Sites[i].Fetched(table(owners))
				w.settle(i)
			}, "the store tells %d", i)
		}
		if x := w.Workers[i]; !x.Waiting && x.Step < x.Steps {
			add(host(i), func(w *world) { w.request(i) }, "worker %d asks", i)
		}
	}
	delivered := len(all) > 0
	w.disturbances(add)
	if !delivered {
		all = append([]action{{format: "time passes", do: (*world).tick, hosts: 3, server: -1}}, all...)
	}
	return all
}

// fromWorker lets a server take what comes next from a worker.
func (w *world) fromWorker(s, i int) {
	m := w.Up[s][i][0]
	w.Up[s][i] = w.Up[s][i][1:]
	w.serverTakes(s, i, m)
}

// drops reports whether somebody is about to lose a message.
func (w *world) drops() bool {
	return w.Servers[0].Drop || w.Servers[1].Drop || w.Workers[0].Drop || w.Workers[1].Drop
}

// disturbances are what can go wrong, and moves.
func (w *world) disturbances(add adder) {
	for at, m := range w.Moves {
		p := possible[m]
		if s := w.Sites[p.site]; s != nil && s.Joining() == nil && s.Router.Ready() && s.Router.Table().Owner(modelKeys[p.key]) == p.from {
			if _, err := s.Router.Mover(); err == nil {
				add(host(p.site), func(w *world) {
					w.Moves = append(append([]int(nil), w.Moves[:at]...), w.Moves[at+1:]...)
					w.Sites[p.site].Begin(Move{From: p.from, To: p.to, Keys: []uint64{modelKeys[p.key]}, Handler: Adds})
					w.settle(p.site)
				}, "move %d begins", m)
			}
		}
	}
	if w.Budget.Crash > 0 && w.storeIsAsked() {
		add(action{server: -1}, (*world).crashStore, "the planner is killed")
	}
	for i := range 2 {
		s := w.Sites[i]
		if w.Budget.Crash > 0 && len(w.ToStore[i]) > 0 {
			add(action{server: -1}, func(w *world) {
				w.write(i)
				w.crashStore()
			}, "the planner is killed when it has recorded for %d", i)
		}
		if w.Budget.Crash > 0 && s != nil {
			add(host(i), func(w *world) { w.crash(i) }, "site %d is killed", i)
		}
		if s == nil {
			add(host(i), func(w *world) { w.restart(i) }, "site %d begins again", i)
		}
		if w.Budget.Expire > 0 && s != nil && s.Moving() > 0 {
			for _, x := range s.inOrder() {
				b := x.batch
				add(host(i), func(w *world) {
					w.Budget.Expire--
					w.Sites[i].Expire(b)
					w.settle(i)
				}, "move %v expires", b)
			}
		}
		if w.Budget.Repeat > 0 && s != nil {
			add(host(i), func(w *world) { w.Budget.Repeat--; w.repeat(i) }, "host %d repeats", i)
		}
		if w.Budget.Loss > 0 {
			add(host(i), func(w *world) { w.Budget.Loss--; w.Workers[i].Drop = true }, "worker %d loses the next", i)
			add(action{server: i}, func(w *world) { w.Budget.Loss--; w.Servers[i].Drop = true }, "server %d loses the next", i)
			if len(w.ToSite[i]) > 0 {
				add(action{server: -1}, func(w *world) { w.Budget.Loss--; w.ToSite[i] = w.ToSite[i][1:] }, "a message to site %d is lost", i)
			}
		}
	}
}

// storeIsAsked reports whether anything is on its way to or from the store.
func (w *world) storeIsAsked() bool {
	for i := range 2 {
		if len(w.ToStore[i]) > 0 || w.Asked[i] || w.Told[i] != nil {
			return true
		}
	}
	return false
}

// crashStore loses what is on its way to or from the store.
func (w *world) crashStore() {
	w.Budget.Crash--
	clear(w.ToStore[:])
	clear(w.Asked[:])
	clear(w.Told[:])
}

// record is the store's part.
func (w *world) record(i int) {
	r, err := w.write(i)
	if w.Sites[i] != nil {
		w.Sites[i].Recorded(r.Batch, err)
		w.settle(i)
	}
}

// write puts what was asked for on the store's disk.
func (w *world) write(i int) (r Record, err error) {
	r = w.ToStore[i][0]
	w.ToStore[i] = w.ToStore[i][1:]
	for k, key := range modelKeys {
		if key < r.Keys[0].First || key > r.Keys[0].Last {
			continue
		}
		switch w.Owners[k] {
		case r.From, r.To:
			w.Owners[k] = r.To
		default:
			err = fmt.Errorf("key %d belongs to %d", key, w.Owners[k])
		}
	}
	return r, err
}

// crash kills a site: what is on its connections is lost with it.
func (w *world) crash(i int) {
	w.Budget.Crash--
	w.Sites[i] = nil
	w.ToStore[i], w.ToSite[i], w.ToSite[1-i] = nil, nil, nil
	w.Asked[i], w.Told[i] = false, nil
	for s := range 2 {
		w.Up[s][i], w.Down[s][i] = nil, nil
	}
}

func (w *world) restart(i int) {
	w.Sites[i] = w.site(i, route.New(route.NewTable(2)))
	w.Sites[i].Join()
	w.settle(i)
}

// tick lets all timers run out.
func (w *world) tick() {
	for i := range 2 {
		w.repeat(i)
	}
}

// repeat lets the timers of one host run out.
func (w *world) repeat(i int) {
	if s := w.Sites[i]; s != nil {
		s.Repeat()
		w.settle(i)
	}
	for _, u := range w.Workers[i].Unacked {
		w.siteUp(i, 0, u.Frames)
	}
	for _, u := range w.Servers[i].Unacked {
		to := workerIndex(int32(u.Signature >> 32 & 0xff))
		w.down(i, to, u.Frames)
	}
}

// done reports whether all requests are answered and all moves over, and checks
// what must hold then.
func (w *world) done() bool {
	total := float32(0)
	for i, x := range w.Workers {
		if x.Waiting || x.Step < x.Steps || len(x.Unacked) > 0 || len(w.Servers[i].Unacked) > 0 {
			return false
		}
		if s := w.Sites[i]; s == nil || !s.Router.Ready() || s.Moving() > 0 || len(s.Router.Holds()) > 0 {
			return false
		}
		if len(w.Ledgers[i].Opened) > 0 {
			return false
		}
		total += float32((x.Steps + 1) / 2)
	}
	for k, key := range modelKeys {
		if sum := w.Servers[w.Owners[k]].Sum[k]; sum != total {
			w.fail("key %d is %v with its owner %d, %v were pushed", key, sum, w.Owners[k], total)
		}
		for i, s := range w.Sites {
			if owner := s.Router.Table().Owner(key); owner != w.Owners[k] {
				w.fail("site %d sends key %d to server %d, it is with %d", i, key, owner, w.Owners[k])
			}
		}
	}
	return true
}

// walk takes one random way from the start to the end. What goes wrong in a
// world goes wrong early in some walks and late in others.
func walk(t *testing.T, w *world, rng *rand.Rand) {
	const patience = 5000
	var taken []string
	tell := func() string {
		return strings.Join(taken[max(0, len(taken)-150):], "\n  ")
	}
	for range patience {
		actions := w.actions()
		// Disturbances are the last actions: most steps are not one.
		n := len(actions)
		if calm := n - w.disturbed(); calm > 0 && rng.IntN(8) > 0 {
			n = calm
		}
		a := actions[rng.IntN(n)]
		taken = append(taken, a.String())
		a.do(w)
		over := w.done()
		if w.Failure != "" {
			t.Fatalf("%s, after\n  %s", w.Failure, tell())
		}
		if over {
			return
		}
	}
	t.Fatalf("no end after %d steps; the last are\n  %s", patience, tell())
}

// disturbed returns how many of the actions are disturbances.
func (w *world) disturbed() (n int) {
	w.disturbances(func(action, func(*world), string, ...any) { n++ })
	return n
}
