package migrate

import "fmt"

// deed is what can happen.
type deed uint8

const (
	serves   deed = iota // a server takes from a worker
	takes                // a site takes from a server
	hears                // a site hears the other
	records              // the store records
	looks                // the store looks where keys are
	isTold               // a site gets the news
	asks                 // a worker asks
	passes               // time passes: all timers run out
	begins               // a move
	expires              // a move
	dies                 // a site
	restarts             // a site
	forgets              // the planner is killed: messages to and from the store are lost
	leaves               // the planner is killed when it has recorded
	repeats              // a host's timers run out early
	mislays              // what the store should record is lost before it has done so
	drops                // a site: the job is over there, or seems so for a while
	cuts                 // so it is, and what was on its way to and from the host is lost
	learns               // a site learns that its move is recorded
	loses                // the planner is killed, and its store is lost
	teaches              // a host teaches the store
	refuses              // a store that was lost records nothing
	strays               // connections of a host whose site is dead are made past it
	returns              // they break, and are made again by the site
)

// action is something that can happen.
type action struct {
	do     deed
	at     uint8  // to whom: host, or server where it serves
	from   uint8  // by which server, or worker
	what   uint32 // a key, a batch, or a message's place in a queue
	lost   uint8  // the message that is lost between worker and site in it
	misses bool   // what was on its way is lost instead
}

func (a action) String() string {
	s := ""
	switch a.do {
	case serves:
		s = fmt.Sprintf("server %d takes from worker %d", a.at, a.from)
		if a.what > 0 {
			s += fmt.Sprintf(" message %d of the queue", a.what)
		}
	case takes:
		s = fmt.Sprintf("site %d takes from server %d", a.at, a.from)
	case hears:
		s = fmt.Sprintf("site %d hears the other", a.at)
	case records:
		s = fmt.Sprintf("the store records for %d", a.at)
	case looks:
		s = fmt.Sprintf("the store looks for %d", a.at)
	case isTold:
		s = fmt.Sprintf("the store tells %d", a.at)
	case asks:
		s = fmt.Sprintf("worker %d asks", a.at)
	case passes:
		s = "time passes"
	case begins:
		s = fmt.Sprintf("site %d begins to move key %d", a.at, modelKeys[a.what])
	case expires:
		s = fmt.Sprintf("move %d of site %d expires", a.what, a.at)
	case dies:
		s = fmt.Sprintf("site %d is killed", a.at)
	case restarts:
		s = fmt.Sprintf("site %d begins again", a.at)
	case forgets:
		s = "the planner is killed"
	case leaves:
		s = fmt.Sprintf("the planner is killed when it has recorded for %d", a.at)
	case repeats:
		s = fmt.Sprintf("host %d repeats", a.at)
	case drops:
		s = fmt.Sprintf("site %d drops its moves", a.at)
	case cuts:
		s = fmt.Sprintf("host %d is cut off, and its site drops its moves", a.at)
	case loses:
		s = "the planner is killed, and its store is lost"
	case teaches:
		s = fmt.Sprintf("host %d teaches the store", a.at)
	case refuses:
		s = fmt.Sprintf("the store does not record for %d yet", a.at)
	case strays:
		s = fmt.Sprintf("connections of host %d go past its site (%d)", a.at, a.what)
	case returns:
		s = fmt.Sprintf("connections of host %d come by its site", a.at)
	case mislays:
		s = fmt.Sprintf("the record for %d is lost", a.at)
	}
	if a.lost > 0 {
		s += fmt.Sprintf("; message %d between worker and site is lost", a.lost)
	}
	if a.misses {
		s += "; no, it is lost"
	}
	return s
}

// model is how worlds go on.
type model struct {
	*parts
	first  budget
	orders bool // all orders count
	// anyOrder has servers handle what a worker has sent in any order: dmlc/ps-lite's Customer
	// queues messages by priority, and those of one priority in no order.
	anyOrder bool
}

// actions appends all that can happen.
func (m *model) actions(w *world, all []action) []action {
	start := len(all)
	if a, ok := m.sole(w); ok { // only where something can be lost, see after
		return m.losses(w, append(all, a), start)
	}
	all = m.disturbances(w, m.deliveries(w, all))
	if w.Budget.Loss > 0 {
		all = m.losses(w, all, start)
	}
	return all
}

// deliveries appends what goes its way; time passes when nothing else does.
func (m *model) deliveries(w *world, all []action) []action {
	start := len(all)
	for i := range uint8(2) {
		for s := range uint8(2) {
			if w.Up[s][i] != 0 {
				all = append(all, action{do: serves, at: s, from: i})
				for n := 1; m.anyOrder && n < len(m.queues[w.Up[s][i]].parts); n++ {
					all = append(all, action{do: serves, at: s, from: i, what: uint32(n)})
				}
			}
			if w.Down[s][i] != 0 {
				all = append(all, action{do: takes, at: i, from: s})
			}
		}
		if w.ToSite[i] != 0 {
			all = append(all, action{do: hears, at: i})
		}
		if w.ToStore[i] != 0 && w.Lost == 0 {
			all = append(all, action{do: records, at: i})
		}
		if w.ToStore[i] != 0 && w.Lost != 0 {
			all = append(all, action{do: refuses, at: i})
		}
		if f := &m.all[w.Hosts[i]].facts; w.Lost != 0 && f.alive && f.lesson != w.Lessons[i] {
			all = append(all, action{do: teaches, at: i})
		}
		if w.Asked[i] != 0 && w.Lost == 0 {
			all = append(all, action{do: looks, at: i})
		}
		if w.Told[i] != 0 {
			all = append(all, action{do: isTold, at: i})
		}
		if m.all[w.Hosts[i]].facts.asks {
			all = append(all, action{do: asks, at: i})
		}
	}
	if len(all) == start {
		all = append(all, action{do: passes})
	}
	return all
}

// sole returns an action that is enough to look at. It changes nothing that any
// other action that is possible until it is taken looks at, and these change
// nothing that it looks at: taken first it leads where it leads taken later, and
// forbids nothing. So what can go wrong after all others can go wrong after it,
// and the same ends are reached. Each takes a message away and brings none that
// another of its kind would take before something else has happened, so that
// nothing is put off for ever.
//
// Where messages can be lost, to lose its message is looked at besides (see
// losses): whoever loses it later could have lost it now.
//
// Timers look at what is not acknowledged: nothing is put first where they can run
// out early. (Otherwise time passes when nothing is on its way.) A crash takes what
// is on its way with it, and so does a cut: what is put first then is only what
// these would undo.
func (m *model) sole(w *world) (a action, ok bool) {
	if !m.resend || m.orders || w.Budget.Repeat > 0 {
		return a, false
	}
	for s := range uint8(2) {
		for i := range uint8(2) {
			if w.Up[s][i] != 0 && m.serveAnyTime(w, s, i) {
				return action{do: serves, at: s, from: i}, true
			}
			if w.Down[s][i] != 0 && m.takeAnyTime(w, s, i) {
				return action{do: takes, at: i, from: s}, true
			}
		}
	}
	return a, false
}

// serveAnyTime reports whether it makes no difference when a server takes what
// comes next from a host's worker.
func (m *model) serveAnyTime(w *world, s, i uint8) bool {
	o := m.turn(turnKey{part: w.Servers[s], do: serves, at: s, what: m.head(w.Up[s][i])})
	switch {
	case len(o.effects) == 1: // seen before: it only sends another ACK, which a crash or cut of the host would take too
		return true
	case w.Budget.cuts():
		return false
	case len(o.effects) == 0: // an ACK: it ends a repetition
		return true
	}
	// A request, and the server will hear of nobody else.
	return w.Budget.Moves == 0 && w.Up[s][1-i] == 0 && m.silent(w, 1-i)
}

// silent reports whether a host will not send anything to a server any more.
func (m *model) silent(w *world, i uint8) bool {
	return m.all[w.Hosts[i]].facts.over && w.Down[0][i] == 0 && w.Down[1][i] == 0
}

// takeAnyTime reports whether it makes no difference when a site takes what comes
// next from a server.
func (m *model) takeAnyTime(w *world, s, i uint8) bool {
	x, h := &m.all[m.head(w.Down[s][i])], &m.all[w.Hosts[i]]
	if !x.ack || !h.facts.alive {
		return false
	}
	if x.op { // it ends a repetition by the site, and is forgotten with it or its move
		return true
	}
	// An ACK of a request that is not over with it, and sends nothing.
	o := m.outcome(w, action{do: takes, at: i, from: s})
	return !w.Budget.cuts() && len(o.effects) == 0 && m.all[o.part].facts.underWay == h.facts.underWay
}

// losses are those of what can happen in which a message is lost: that which
// would arrive, or one between worker and site. When a message is lost makes no
// difference before it would have arrived.
func (m *model) losses(w *world, all []action, start int) []action {
	for _, a := range all[start:] {
		switch a.do {
		case serves, takes, hears, records, looks, isTold:
			lost := a
			lost.misses = true
			all = append(all, lost)
		}
		switch a.do {
		case records:
			all = append(all, action{do: mislays, at: a.at})
		case serves, looks, forgets, leaves, loses, teaches, refuses:
			continue
		case passes:
			for i := range uint8(2) {
				all = m.crossings(w, all, a, action{do: repeats, at: i})
			}
			continue
		}
		all = m.crossings(w, all, a, a)
	}
	return all
}

// crossings appends an action once for each message between worker and site in
// what a host does, with that one lost.
func (m *model) crossings(w *world, all []action, a, host action) []action {
	a.at = host.at
	for n := range m.outcome(w, host).crossed {
		a.lost = n + 1
		all = append(all, a)
	}
	return all
}

// disturbances are what can go wrong besides, and moves.
func (m *model) disturbances(w *world, all []action) []action {
	b := w.Budget
	if b.Crash > 0 && (w.ToStore != [2]uint32{} || w.Asked != [2]uint8{} || w.Told != [2]uint8{}) {
		all = append(all, action{do: forgets})
	}
	if b.Lose > 0 {
		all = append(all, action{do: loses})
	}
	for i := range uint8(2) {
		f := &m.all[w.Hosts[i]].facts
		for k, possible := range f.begins {
			// As long as no key has moved one is as good as the other.
			if possible && b.Moves > 0 && (k == 0 || b.Moves < m.first.Moves || m.orders) {
				all = append(all, action{do: begins, at: i, what: uint32(k)})
			}
		}
		if b.Crash > 0 && w.ToStore[i] != 0 && w.Lost == 0 {
			all = append(all, action{do: leaves, at: i})
		}
		if b.Crash > 0 && f.alive {
			all = append(all, action{do: dies, at: i})
		}
		if !f.alive {
			all = append(all, action{do: restarts, at: i})
		}
		if b.Past > 0 && !f.alive && !f.guarded && f.past == 0 {
			for which := range uint32(3) {
				all = append(all, action{do: strays, at: i, what: which + 1})
			}
		}
		if f.past != 0 {
			all = append(all, action{do: returns, at: i})
		}
		if b.Expire > 0 {
			for _, n := range f.moving {
				all = append(all, action{do: expires, at: i, what: uint32(n)})
			}
		}
		if b.Over > 0 && len(f.moving) > 0 {
			all = append(all, action{do: drops, at: i})
			// Without PS_RESEND a job survives this only where its worker is done.
			if m.resend || f.done {
				all = append(all, action{do: cuts, at: i})
			}
		}
		if b.Repeat > 0 && f.alive {
			all = append(all, action{do: repeats, at: i})
		}
	}
	return all
}
