package migrate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// crossing is a job that does not wait: several workers push and pull single keys, a worker many at a time, while both
// hosts move keys, give moves up and try again. Each connection is a queue of its own, and any of them may be behind.
type crossing struct {
	*testing.T
	rng     *rand.Rand
	sites   [2]*Site
	workers []*crossingWorker
	keys    []uint64
	stores  [2]map[uint64]float32
	// Queues, by worker and server: requests before the proxy, on to the server, and answers back to the proxy.
	asks, up, down [crossingWorkers][2][]*pslite.Message
	taking         [crossingWorkers][2]bool // the first of asks was inspected, and is to be taken
	letters        map[link][]Message       // in the order in which they were sent
	records        []record
	moved, failed  int
	log            []string
}

const crossingWorkers = 3

// link carries letters in one of its sender's names to one of its receiver's.
type link struct{ from, to string }

// crossingNames are those of the sites: host 0 has two addresses, and so two names.
var crossingNames = [2][]string{{"a", "a2"}, {"b"}}

type record struct {
	site int
	r    Record
}

// crossingWorker is a worker: host 0 has two of them.
type crossingWorker struct {
	host   int
	used   int32
	pushed map[uint64]float32 // by request, in order
	least  map[int32]float32  // what a pull must bring at least
	read   map[uint64]float32 // by key, the most so far
	waits  map[int32]uint64   // key of a request without an answer
}

func newCrossing(t *testing.T, seed uint64) *crossing {
	c := &crossing{T: t, rng: rand.New(rand.NewPCG(seed, 3)), stores: [2]map[uint64]float32{{}, {}}, letters: map[link][]Message{}}
	for i, names := range crossingNames {
		r := route.New(route.NewTable(2))
		r.Open(r.Table())
		if seed%2 == 0 {
			r.Gather()
		}
		c.sites[i] = New(names[0], r, 0)
		c.sites[i].SetOthers(crossingNames[1-i])
	}
	for i := range crossingWorkers {
		w := &crossingWorker{host: i / 2, pushed: map[uint64]float32{}, least: map[int32]float32{}, read: map[uint64]float32{}, waits: map[int32]uint64{}}
		c.workers = append(c.workers, w)
		c.sites[w.host].Router.AddWorker(pslite.WorkerID(i), &memoryLedger{})
	}
	for home := range int32(2) {
		for i := range uint64(2) {
			c.keys = append(c.keys, plan.HomeRange(home, 2).First+i)
		}
	}
	return c
}

func (c *crossing) note(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

func (c *crossing) fail(format string, args ...any) {
	c.Helper()
	for _, l := range c.log[max(0, len(c.log)-60):] {
		c.Log(l)
	}
	c.Fatalf(format, args...)
}

// ask has a worker make a request for a key, behind all that it has made.
func (c *crossing) ask(i int, push bool, key uint64) {
	w := c.workers[i]
	w.used++
	m := &pslite.Message{}
	m.Meta.Reset()
	m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp, m.Meta.Request, m.Meta.Push, m.Meta.Pull = 0, 0, w.used, true, push, !push
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{key}), {}}
	if push {
		m.Data[1] = pslite.AppendFloat32(nil, []float32{1})
		w.pushed[key]++
	} else {
		w.least[w.used] = w.pushed[key]
	}
	m.Meta.DataSize = int32(8 + len(m.Data[1]))
	w.waits[w.used] = key
	server := plan.HomeOf(key, 2)
	c.asks[i][server] = append(c.asks[i][server], m)
}

// inspect shows the proxy the first request of a connection; take gives it one that it has to see whole.
func (c *crossing) inspect(i, server int) {
	q := &c.asks[i][server]
	m := (*q)[0]
	r, id := c.sites[c.workers[i].host].Router, pslite.WorkerID(i)
	if c.taking[i][server] {
		c.taking[i][server] = false
		*q = (*q)[1:]
		if err := r.Take(id, int32(server), m, pslite.DMLC); err != nil {
			c.fail("%v", err)
		}
	} else if passes := r.Request(id, int32(server), &m.Meta, m.Keys(), pslite.DMLC); passes {
		*q = (*q)[1:]
		c.carry() // what is due goes first
		c.note("worker %d server %d ts %d push %v key %d passes", i, server, m.Meta.Timestamp, m.Meta.Push, m.Keys().At(0))
		c.up[i][server] = append(c.up[i][server], m)
	} else {
		c.taking[i][server] = true
	}
	c.carry()
}

// serve has a server take the first message of a connection.
func (c *crossing) serve(i, server int) {
	m := c.up[i][server][0]
	c.up[i][server] = c.up[i][server][1:]
	back := &pslite.Message{Meta: m.Meta}
	back.Meta.Request, back.Meta.DataTypes = false, nil
	var values []float32
	for k := range m.Keys().Len() {
		key := m.Keys().At(k)
		if m.Meta.Push {
			c.stores[server][key] += m.Values().Float32(k)
			c.note("server %d: key %d += %v by worker %d ts %d -> %v", server, key, m.Values().Float32(k), i, m.Meta.Timestamp, c.stores[server][key])
		}
		values = append(values, c.stores[server][key])
	}
	if !m.Meta.Push {
		back.Meta.DataTypes = m.Meta.DataTypes
		back.Data = [][]byte{m.Data[0], pslite.AppendFloat32(nil, values)}
	}
	c.down[i][server] = append(c.down[i][server], back)
}

// hear has the proxy take the first answer of a connection.
func (c *crossing) hear(i, server int) {
	m := c.down[i][server][0]
	c.down[i][server] = c.down[i][server][1:]
	r, id := c.sites[c.workers[i].host].Router, pslite.WorkerID(i)
	if r.Answer(int32(server), id, &m.Meta) {
		c.got(i, m)
	} else if err := r.TakeAnswer(int32(server), id, m, pslite.DMLC); err != nil {
		c.fail("%v", err)
	}
	c.carry()
}

// got gives a worker an answer.
func (c *crossing) got(i int, m *pslite.Message) {
	w, at := c.workers[i], m.Meta.Timestamp
	key, ok := w.waits[at]
	if !ok {
		c.fail("worker %d gets an answer to %d, which it does not wait for", i, at)
	}
	delete(w.waits, at)
	if m.Meta.Push {
		return
	}
	v := m.Values().Float32(0)
	if m.Keys().Len() != 1 || m.Keys().At(0) != key || v < w.least[at] {
		c.fail("worker %d reads %v of key %d (ts %d), it has pushed %v before", i, v, m.Keys().At(0), at, w.least[at])
	}
	delete(w.least, at)
}

// carry carries out what sites ask for.
func (c *crossing) carry() {
	for i, s := range c.sites {
		for _, o := range s.Out() {
			switch {
			case o.Send != nil:
				from := crossingNames[i][:1]
				if o.Send.Kind == Quiet || o.Send.Kind == Holding {
					from = crossingNames[i]
				}
				for _, name := range from {
					c.letters[link{name, o.To}] = append(c.letters[link{name, o.To}], *o.Send)
				}
			case o.Record != nil:
				c.records = append(c.records, record{i, *o.Record})
			case o.Result != nil:
				c.note("site %d: move of %v from %d to %d: %v", i, o.Result.Move.Keys, o.Result.Move.From, o.Result.Move.To, o.Result.Err)
				if o.Result.Err != nil {
					c.failed++
				} else {
					c.moved++
				}
			case o.Route.Frames == nil:
				c.fail("a request that waited cannot be sent")
			case o.Route.ToWorker:
				c.got(workerIndex(o.Route.Worker), decode(o.Route.Frames))
			default:
				m := decode(o.Route.Frames)
				n, server := workerIndex(o.Route.Worker), o.Route.Server
				c.note("site %d: worker %d server %d ts %d push %v key %d", i, n, server, m.Meta.Timestamp, m.Meta.Push, m.Keys().At(0))
				c.up[n][server] = append(c.up[n][server], m)
			}
		}
	}
}

// move has the host of a server move some of the keys that it has.
func (c *crossing) move(i int) {
	var mine []uint64
	for _, k := range c.keys {
		if c.sites[i].Router.Table().Owner(k) == int32(i) && c.rng.IntN(2) == 0 {
			mine = append(mine, k)
		}
	}
	if len(mine) == 0 {
		return
	}
	err := c.sites[i].Begin(Move{From: int32(i), To: int32(1 - i), Keys: mine, Handler: Adds})
	c.note("site %d begins to move %v: %v", i, mine, err)
	c.carry()
}

// expire gives a move of a site up.
func (c *crossing) expire(i int) {
	for n := range c.sites[i].moves {
		c.note("site %d expires %d: %v", i, n, c.sites[i].Phase(n))
		c.sites[i].Expire(route.Batch{Mover: crossingNames[i][0], Number: n})
		c.carry()
		return
	}
}

// step does something that is possible; false: nothing is on its way.
func (c *crossing) step(slow int) bool {
	var able []func()
	for i := range crossingWorkers {
		for server := range 2 {
			if len(c.asks[i][server]) > 0 {
				able = append(able, func() { c.inspect(i, server) })
			}
			if len(c.up[i][server]) > 0 && (2*i+server != slow || c.rng.IntN(8) == 0) {
				able = append(able, func() { c.serve(i, server) })
			}
			if len(c.down[i][server]) > 0 && (2*i+server != slow-6 || c.rng.IntN(8) == 0) {
				able = append(able, func() { c.hear(i, server) })
			}
		}
	}
	for _, from := range []string{"a", "a2", "b"} {
		for _, to := range []string{"a", "a2", "b"} {
			l := link{from, to}
			if len(c.letters[l]) > 0 && (slow < 12 || to != "a2" || c.rng.IntN(30) == 0) {
				able = append(able, func() { c.deliver(l) })
			}
		}
	}
	if len(c.records) > 0 {
		able = append(able, func() {
			r := c.records[0]
			c.records = c.records[1:]
			c.sites[r.site].Recorded(r.r.Batch, nil)
			c.carry()
		})
	}
	if len(able) == 0 {
		return false
	}
	able[c.rng.IntN(len(able))]()
	return true
}

// deliver has a letter of a link arrive. Some are lost, some come twice, and some come by another link than those before.
func (c *crossing) deliver(l link) {
	at := 0
	if c.rng.IntN(8) == 0 {
		at = c.rng.IntN(len(c.letters[l]))
	}
	m := c.letters[l][at]
	what := c.rng.IntN(20)
	if what != 1 { // it does not come once more
		c.letters[l] = slices.Delete(c.letters[l], at, at+1)
	}
	if what == 0 {
		return
	}
	to := 0
	if l.to == "b" {
		to = 1
	}
	c.note("%s to %s: kind %d of %v, keys %v, owner %d", l.from, l.to, m.Kind, m.Batch, m.Keys, m.Owner)
	c.sites[to].Receive(l.from, m)
	c.carry()
}

// disturb lets time pass, and has keys move.
func (c *crossing) disturb() {
	i := c.rng.IntN(2)
	switch c.rng.IntN(24) {
	case 0, 1:
		c.move(i)
	case 2:
		c.expire(i)
	case 3:
		c.sites[i].Repeat()
		c.carry()
	case 4:
		c.sites[i].Router.EndGathers()
		c.carry()
	}
}

// A worker's pull brings its own pushes before it, whatever is in flight and wherever its key goes meanwhile, and in the
// end each key has all pushes once.
func TestRequestsThatDoNotWait(t *testing.T) {
	moved, failed := 0, 0
	for seed := range uint64(600) {
		c := newCrossing(t, seed)
		slow := c.rng.IntN(16)
		for range 12 {
			for i := range crossingWorkers {
				order := c.rng.Perm(len(c.keys))
				for _, k := range order {
					c.ask(i, true, c.keys[k])
				}
				for _, k := range order {
					c.ask(i, false, c.keys[k])
				}
			}
			for n := c.rng.IntN(200); n > 0 || c.rng.IntN(3) > 0; n-- {
				c.disturb()
				if !c.step(slow) {
					break
				}
			}
		}
		c.finish()
		moved, failed = moved+c.moved, failed+c.failed
	}
	if moved < 1000 || failed < 100 {
		t.Errorf("%d groups of keys have moved, %d moves were given up", moved, failed)
	}
}

// finish lets everything come to its end, and checks it.
func (c *crossing) finish() {
	for n := 0; ; n++ {
		for c.step(-1) {
		}
		waits := slices.ContainsFunc(c.workers, func(w *crossingWorker) bool { return len(w.waits) > 0 })
		held := len(c.sites[0].Router.Holds()) + len(c.sites[1].Router.Holds())
		if !waits && held == 0 && c.sites[0].Moving()+c.sites[1].Moving() == 0 {
			break
		}
		if n > 100 {
			c.fail("requests %v, %v are not answered", c.sites[0].Router.UnderWay(), c.sites[1].Router.UnderWay())
		}
		for i, s := range c.sites {
			s.Repeat()
			s.Router.EndGathers()
			c.carry()
			if n%8 == 7 {
				c.expire(i)
			}
		}
	}
	for _, key := range c.keys {
		total := float32(0)
		for _, w := range c.workers {
			total += w.pushed[key]
		}
		owner := c.sites[0].Router.Table().Owner(key)
		if other := c.sites[1].Router.Table().Owner(key); other != owner {
			c.fail("key %d is with server %d, says one site, with %d, says the other", key, owner, other)
		}
		if got := c.stores[owner][key]; got != total {
			c.fail("key %d is %v with its owner %d, %v were pushed", key, got, owner, total)
		}
	}
}
