package migrate

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math/bits"
	"unsafe"
)

// A world is two hosts with a worker and a site each, two servers that two keys
// belong to, a store, and the messages between them. It is plain data: its parts
// are numbers.
type world struct {
	Hosts, Servers [2]uint32
	Up, Down       [2][2]uint32 // queues to server s from host i, and back
	ToSite         [2]uint32    // queues from the other site
	ToStore        [2]uint32    // records; 0: none
	// How many timestamps and batches have been in use of each host.
	Own, Batches [2]uint8
	Owners       [2]uint8 // of the keys, as the store has it
	Asked        [2]uint8 // 1: the store was asked where keys are
	Told         [2]uint8 // and has said so: 1 + owners
	Lost         uint8    // 1: the store is, and what it has of owners counts nothing
	Lessons      [2]uint8 // what hosts have taught it since
	Budget       budget   // the last: see digest
}

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// digest is of all but the budget.
func (w *world) digest() uint64 {
	return maphash.Bytes(seeds[0], unsafe.Slice((*byte)(unsafe.Pointer(w)), unsafe.Offsetof(w.Budget)))
}

func newWorld(p *parts, steps int, b budget) world {
	w := world{Budget: b}
	for i := range 2 {
		h := &host{
			Ledger: &memoryLedger{Lossy: p.resend, Forget: p.fault == forgetsSeen},
			Worker: &modelWorker{ID: int32(9 + 2*i), Steps: steps, Resend: p.resend},
		}
		h.Journal.Keeps = b.Lose > 0
		t := turn{host: h, at: i}
		t.begin(0)
		h.Site.Router.Open(table(w.Owners[:]))
		h.Site.Router.Keep(nil)
		w.Hosts[i] = p.keep(aHost, i, h, nil)
		w.Servers[i] = p.keep(aServer, i, &modelServer{Resend: p.resend}, nil)
	}
	return w
}

// outcome returns what a host does in an action.
func (m *model) outcome(w *world, a action) *outcome {
	k := turnKey{part: w.Hosts[a.at], do: a.do, at: a.at, server: a.from, lost: a.lost, what: a.what, own: w.Own[a.at], number: w.Batches[a.at]}
	switch a.do {
	case takes:
		k.what = m.head(w.Down[a.from][a.at])
	case hears:
		k.what = m.head(w.ToSite[a.at])
	case records, leaves:
		k.do = learns
		k.what = w.ToStore[a.at]
		if !m.write(w, a.at) {
			k.server = 1
		}
	case isTold:
		k.what = uint32(w.Told[a.at] - 1)
	}
	return m.turn(k)
}

func (p *parts) head(q uint32) uint32 { return p.queues[q].parts[0] }

// write reports whether a record can be made, by the store's rule: from there to
// there, or there already.
func (m *model) write(w *world, i uint8) bool {
	r := m.all[w.ToStore[i]].record
	owner := w.Owners[r.Keys[0].First-modelKeys[0]]
	return int32(owner) == r.From || int32(owner) == r.To
}

// after returns the world that an action leads to; ok is false where it is not
// possible after all. What follows of itself, its order making no difference, has
// happened in it too.
func (m *model) after(w *world, a action) (next world, failure string, ok bool) {
	next = *w
	failure, ok = m.step(&next, a)
	for ok && failure == "" && next.Budget.Loss == 0 {
		sole, more := m.sole(&next)
		if !more {
			break
		}
		failure, _ = m.step(&next, sole)
	}
	return next, failure, ok
}

// step changes a world by an action.
func (m *model) step(n *world, a action) (failure string, ok bool) {
	b := &n.Budget
	if a.lost > 0 || a.misses {
		b.Loss--
	}
	switch a.do {
	case serves:
		q := &n.Up[a.at][a.from]
		x := m.queues[*q]
		*q = x.rest
		if a.what > 0 {
			*q = 0
			for i, number := range x.parts {
				if uint32(i) != a.what {
					*q = m.push(*q, number)
				}
			}
		}
		if !a.misses {
			m.serverTurn(n, a.at, serves, x.parts[a.what])
		}
	case looks:
		n.Asked[a.at] = 0
		if !a.misses {
			n.Told[a.at] = 1 + n.Owners[0] + 2*n.Owners[1]
		}
	case passes:
		for i := range uint8(2) {
			lost := a.lost
			if i != a.at {
				lost = 0
			}
			failure = cmp.Or(failure, m.hostRepeats(n, i, lost))
		}
	case forgets:
		m.forget(n)
	case leaves:
		m.record(n, a.at)
		m.forget(n)
	case loses:
		b.Lose--
		n.ToStore, n.Asked, n.Told = [2]uint32{}, [2]uint8{}, [2]uint8{}
		n.Owners, n.Lost, n.Lessons = [2]uint8{}, 1, [2]uint8{}
	case teaches:
		n.Lessons[a.at] = m.all[n.Hosts[a.at]].facts.lesson
		m.learn(n)
	case refuses:
		n.ToStore[a.at] = 0
	case repeats:
		b.Repeat--
		failure = m.hostRepeats(n, a.at, a.lost)
	case mislays:
		b.Loss--
		n.ToStore[a.at] = 0
	default:
		var o *outcome
		if !a.misses {
			if o = m.outcome(n, a); o.refused {
				return "", false
			}
			failure = o.failure
		}
		m.arrives(n, a)
		if o != nil {
			m.apply(n, a.at, o)
		}
	}
	m.normalize(n)
	return failure, true
}

// arrives takes away what an action of a host has taken, or lost.
func (m *model) arrives(n *world, a action) {
	switch a.do {
	case takes:
		n.Down[a.from][a.at] = m.queues[n.Down[a.from][a.at]].rest
	case hears:
		n.ToSite[a.at] = m.queues[n.ToSite[a.at]].rest
	case records:
		m.record(n, a.at)
	case isTold:
		n.Told[a.at] = 0
	case begins:
		n.Budget.Moves--
	case expires:
		n.Budget.Expire--
	case drops:
		n.Budget.Over--
	case cuts:
		n.Budget.Over--
		n.cut(a.at)
	case strays:
		n.Budget.Past--
	case returns:
		n.cut(a.at)
	case dies:
		n.Budget.Crash--
		i := a.at
		n.ToStore[i], n.Asked[i], n.Told[i], n.ToSite = 0, 0, 0, [2]uint32{}
		n.cut(i)
	}
}

// cut loses the messages between a host and the servers.
func (w *world) cut(i uint8) {
	for s := range 2 {
		w.Up[s][i], w.Down[s][i] = 0, 0
	}
}

// record puts what was asked for on the store's disk.
func (m *model) record(n *world, i uint8) {
	if m.write(n, i) {
		r := m.all[n.ToStore[i]].record
		n.Owners[r.Keys[0].First-modelKeys[0]] = uint8(r.To)
	}
	n.ToStore[i] = 0
}

// forget loses the messages to or from the store.
func (m *model) forget(n *world) {
	n.Budget.Crash--
	n.ToStore, n.Asked, n.Told, n.Lessons = [2]uint32{}, [2]uint8{}, [2]uint8{}, [2]uint8{}
}

// apply puts what a host does into the world.
func (m *model) apply(n *world, i uint8, o *outcome) {
	n.Hosts[i] = o.part
	for _, e := range o.effects {
		switch {
		case e.fetch:
			n.Asked[i] = 1
		case e.kind == aWord:
			n.ToSite[1-i] = m.push(n.ToSite[1-i], e.number)
		case e.kind == aRecord:
			if n.ToStore[i] == 0 { // one question at a time
				n.ToStore[i] = e.number
			}
		default:
			n.Up[e.to][i] = m.push(n.Up[e.to][i], e.number)
		}
	}
	m.count(n)
}

func (m *model) serverTurn(n *world, s uint8, do deed, what uint32) {
	o := m.turn(turnKey{part: n.Servers[s], do: do, at: s, what: what})
	n.Servers[s] = o.part
	for _, e := range o.effects {
		n.Down[s][e.to] = m.push(n.Down[s][e.to], e.number)
	}
}

// hostRepeats lets the timers of a host run out, and those of its server.
func (m *model) hostRepeats(n *world, i, lost uint8) (failure string) {
	o := m.outcome(n, action{do: repeats, at: i, lost: lost})
	m.apply(n, i, o)
	m.serverTurn(n, i, repeats, 0)
	return o.failure
}

// used returns the names in use anywhere in a world.
func (m *model) used(n *world) (used, noted names) {
	for i := range 2 {
		for _, x := range [...]uint32{n.Hosts[i], n.Servers[i], n.ToStore[i]} {
			used.join(&m.all[x].used)
			noted.join(&m.all[x].noted)
		}
		for _, q := range [...]uint32{n.Up[i][0], n.Up[i][1], n.Down[i][0], n.Down[i][1], n.ToSite[i]} {
			used.join(&m.queues[q].used)
		}
	}
	return used, noted
}

// count notes which timestamps and batches have been given: new ones are higher.
func (m *model) count(n *world) {
	used, noted := m.used(n)
	for i := range 2 {
		n.Own[i] = max(n.Own[i], uint8(bits.Len32(used[ownNames+i]|noted[ownNames+i])))
		n.Batches[i] = max(n.Batches[i], uint8(bits.Len32(used[batchNames+i])))
	}
}

// normalize renumbers names, in the same order, where some are out of use.
func (m *model) normalize(n *world) {
	if m.exact {
		return
	}
	m.sweep(n)
	left, noted := m.used(n)
	changes := false
	for sort := range sorts {
		changes = changes || noted[sort]&^left[sort] != 0 || sort < stepNames && left[sort]&(left[sort]+1) != 0
	}
	if changes {
		for i := range 2 {
			n.Hosts[i], n.Servers[i] = m.rename(n.Hosts[i], &left), m.rename(n.Servers[i], &left)
			if n.ToStore[i] != 0 {
				n.ToStore[i] = m.rename(n.ToStore[i], &left)
			}
			for s := range 2 {
				n.Up[s][i], n.Down[s][i] = m.renameQueue(n.Up[s][i], &left), m.renameQueue(n.Down[s][i], &left)
			}
			n.ToSite[i] = m.renameQueue(n.ToSite[i], &left)
		}
	}
	for i := range 2 {
		n.Own[i], n.Batches[i] = uint8(bits.OnesCount32(left[ownNames+i])), uint8(bits.OnesCount32(left[batchNames+i]))
	}
}

// done reports whether all requests are answered and all moves over, and checks
// what must hold then.
func (m *model) done(w *world) (done bool, failure string) {
	if w.Lost != 0 {
		return false, ""
	}
	total := float32(0)
	for i := range 2 {
		h, s := &m.all[w.Hosts[i]].facts, &m.all[w.Servers[i]].facts
		if !h.over || s.unacked {
			return false, ""
		}
		total += float32((h.requests + 1) / 2)
	}
	for k, key := range modelKeys {
		owner := w.Owners[k]
		if sum := m.all[w.Servers[owner]].facts.sums[k]; sum != total {
			return true, fmt.Sprintf("key %d is %v with its owner %d, %v were pushed", key, sum, owner, total)
		}
		for i := range 2 {
			if o := m.all[w.Hosts[i]].facts.owners[k]; o != owner {
				return true, fmt.Sprintf("site %d sends key %d to server %d, it is with %d", i, key, o, owner)
			}
		}
	}
	return true, ""
}

// end is the world when all is over.
type end struct {
	Budget budget
	Owners [2]uint8
	Sums   [2][2]float32 // of each server, of each key
	Read   [2][2]float32 // by each worker last
}

func (m *model) end(w *world) end {
	e := end{Budget: w.Budget, Owners: w.Owners}
	for i := range 2 {
		e.Sums[i], e.Read[i] = m.all[w.Servers[i]].facts.sums, m.all[w.Hosts[i]].facts.read
	}
	return e
}

// calm reports whether nothing is on its way.
func (w *world) calm() bool {
	return w.Lost == 0 && w.Up == [2][2]uint32{} && w.Down == [2][2]uint32{} && w.ToSite == [2]uint32{} && w.ToStore == [2]uint32{} && w.Asked == [2]uint8{} && w.Told == [2]uint8{}
}
