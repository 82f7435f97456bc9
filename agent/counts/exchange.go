package counts

// exchange names a request and its answer: they travel on different
// connections and are matched by what they say.
type exchange struct {
	worker, server           int32
	app, customer, timestamp int32
	push, pull               bool
}

func (r Request) exchange() exchange {
	return exchange{int32(r.Worker), int32(r.Server), r.App, r.Customer, r.Timestamp, r.Push, r.Pull}
}

// unanswered is the state of a request in flight.
type unanswered struct {
	asked       int64
	bytes, keys uint64 // keys 0: not known
	first, last uint64
	keyed       bool
}

// pair is a worker and a server.
type pair struct{ worker, server int32 }

// pending holds the requests that wait for their answers. When it is full, the
// one that has waited longest is given up.
type pending struct {
	at    map[exchange]unanswered
	order []exchange // ring, oldest at next; may hold some that were answered
	next  int
	// pairs are the requests of each pair, oldest first; the first one waits,
	// those after it may have been answered. Each is in order too.
	pairs map[pair][]exchange
}

func newPending(limit int) *pending {
	return &pending{at: map[exchange]unanswered{}, order: make([]exchange, 0, limit), pairs: map[pair][]exchange{}}
}

// addRequest adds a request and reports whether another one was given up for it, and
// whose.
func (p *pending) addRequest(r Request) (worker int, given bool) {
	x := r.exchange()
	if len(p.order) < cap(p.order) {
		p.order = append(p.order, x)
	} else {
		old := p.order[p.next]
		if _, given = p.at[old]; given {
			delete(p.at, old)
			worker = int(old.worker)
			p.trim(pair{old.worker, old.server})
		}
		p.order[p.next] = x
		p.next = (p.next + 1) % len(p.order)
	}
	p.at[x] = unanswered{asked: r.Time, bytes: r.Bytes}
	of := pair{x.worker, x.server}
	p.pairs[of] = append(p.pairs[of], x)
	return worker, given
}

func (p *pending) removeRequest(r Request) (w unanswered, ok bool) {
	x := r.exchange()
	w, ok = p.at[x]
	delete(p.at, x)
	p.trim(pair{x.worker, x.server})
	return w, ok
}

// giveUpBefore drops the requests of a pair that wait for longer than one that waits,
// and returns how many they were.
func (p *pending) giveUpBefore(r Request) (given int) {
	x := r.exchange()
	if _, waits := p.at[x]; !waits {
		return 0
	}
	of := pair{x.worker, x.server}
	for _, older := range p.pairs[of] {
		if older == x {
			break
		}
		if _, waits := p.at[older]; waits {
			delete(p.at, older)
			given++
		}
	}
	p.trim(of)
	return given
}

// trim drops the requests of a pair that were answered, up to the first that
// waits.
func (p *pending) trim(of pair) {
	list := p.pairs[of]
	n := 0
	for n < len(list) {
		if _, waits := p.at[list[n]]; waits {
			break
		}
		n++
	}
	switch {
	case n == len(list):
		delete(p.pairs, of)
	case n > 0:
		p.pairs[of] = list[n:]
	}
}

// oldest returns the oldest request of each pair that waits.
func (p *pending) oldest() []Wait {
	var waits []Wait
	for of, list := range p.pairs {
		x := list[0]
		w := p.at[x]
		waits = append(waits, Wait{
			Worker: int(of.worker), Server: int(of.server), Since: w.asked, Requests: len(list), Push: x.push, Pull: x.pull,
			Bytes: w.bytes, Keyed: w.keyed, First: w.first, Last: w.last,
		})
	}
	return waits
}

// seenWindow is how far back, in timestamps, a repeat is recognised.
const seenWindow = 1024

// seenLimit is how many sequences of timestamps are followed at most.
const seenLimit = 1 << 16

// A sequence is the requests, or answers, of one customer between two nodes.
type sequence struct {
	worker, server, app, customer int32
	answers                       bool
}

// window says which of the last timestamps were seen: those up to highest.
type window struct {
	highest int32
	bits    [seenWindow / 64]uint64
}

// seen recognises what PS_RESEND sends again.
type seen struct{ windows map[sequence]*window }

func newSeen() *seen { return &seen{map[sequence]*window{}} }

// noteMessage notes a request or an answer and reports whether it is new. One so old
// that it is out of the window is taken as a repeat, since timestamps rise.
func (s *seen) noteMessage(r Request, answer bool) bool {
	key := sequence{int32(r.Worker), int32(r.Server), r.App, r.Customer, answer}
	w := s.windows[key]
	if w == nil {
		if len(s.windows) >= seenLimit {
			clear(s.windows)
		}
		w = &window{highest: r.Timestamp}
		s.windows[key] = w
	}
	ahead := int64(r.Timestamp) - int64(w.highest)
	switch {
	case ahead <= -seenWindow:
		return false
	case ahead >= seenWindow:
		w.bits = [seenWindow / 64]uint64{}
		w.highest = r.Timestamp
	case ahead > 0:
		for t := int64(w.highest) + 1; t <= int64(r.Timestamp); t++ {
			at := uint64(t) % seenWindow
			w.bits[at/64] &^= 1 << (at % 64)
		}
		w.highest = r.Timestamp
	}
	at := uint64(int64(r.Timestamp)) % seenWindow
	if w.bits[at/64]>>(at%64)&1 == 1 {
		return false
	}
	w.bits[at/64] |= 1 << (at % 64)
	return true
}

// progress is how far a worker has come.
type progress struct {
	started   bool
	pushes    bool // it pushes; until then its pulls are its steps
	timestamp int32
	app       int32
	customer  int32
	stepTime  int64 // when its last step was seen
}

// step notes that a worker went on. A step is a round of pushes: those with
// one timestamp, whatever servers they go to. For a worker that has not pushed
// yet it is a round of pulls. Where a job has several customers in a worker,
// the one that pushed first counts.
func (j *Locality) step(now *Interval, r Request) {
	for r.Worker >= len(j.progress) {
		j.progress = append(j.progress, progress{})
	}
	p := &j.progress[r.Worker]
	if r.Push && !p.pushes {
		*p = progress{pushes: true}
	}
	if !r.Push && p.pushes || !r.Push && !r.Pull {
		return
	}
	switch {
	case !p.started:
		p.started, p.app, p.customer = true, r.App, r.Customer
	case p.app != r.App || p.customer != r.Customer || r.Timestamp <= p.timestamp:
		return
	}
	p.timestamp, p.stepTime = r.Timestamp, r.Time
	slot := j.seconds.at(r.Time)
	slot.steps = grown(slot.steps, r.Worker)
	slot.steps[r.Worker]++
	j.worker(r.Worker).step(r.Time)
	now.stepped(r.Worker)
	j.all.stepped(r.Worker)
}
