package counts

// exchange identifies a request and its answer. They travel on different connections and have
// no number in common but the timestamp, which counts per customer.
type exchange struct {
	worker, server           int32
	app, customer, timestamp int32
	push, pull               bool
}

// exchange returns the key under which the request, or the request of this answer, waits.
func (r Request) exchange() exchange {
	return exchange{int32(r.Worker), int32(r.Server), r.App, r.Customer, r.Timestamp, r.Push, r.Pull}
}

// unanswered is a request in flight.
type unanswered struct {
	asked int64 // nanoseconds since 1970
	bytes uint64
	// The ends of its key list, valid if keyed.
	first, last uint64
	keyed       bool
}

// pair is a worker and a server.
type pair struct{ worker, server int32 }

// pending holds the requests in flight, at most as many as order has capacity for. When it is
// full, the oldest is given up, so lost answers cannot fill it for ever.
//
// Invariant: the first request in each list of pairs is in at; lists are never empty.
type pending struct {
	at    map[exchange]unanswered
	order []exchange // ring, oldest at next once it is full; some may have been answered
	next  int
	// pairs has the requests of each pair of nodes, oldest first. Later ones in a list may have
	// been answered out of turn.
	pairs map[pair][]exchange
}

// newPending returns an empty one for at most limit requests, for which order is allocated at
// once.
func newPending(limit int) *pending {
	return &pending{at: map[exchange]unanswered{}, order: make([]exchange, 0, limit), pairs: map[pair][]exchange{}}
}

// addRequest adds a request. given reports whether another one was given up for it, which was
// of the returned worker.
func (p *pending) addRequest(r Request) (worker int, given bool) {
	x := r.exchange()
	if len(p.order) < cap(p.order) {
		p.order = append(p.order, x)
	} else {
		old := p.order[p.next]
		// Usually the oldest has been answered long ago, and only its place is reused.
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

// removeRequest removes the request that r answers and returns it. Its entry in order stays
// until the ring comes round.
func (p *pending) removeRequest(r Request) (w unanswered, ok bool) {
	x := r.exchange()
	if w, ok = p.at[x]; !ok && r.AnyServer {
		x, w, ok = p.ofAnyServer(x)
	}
	delete(p.at, x)
	p.trim(pair{x.worker, x.server})
	return w, ok
}

// ofAnyServer finds the request in flight that differs from x in nothing but the server. It looks
// at all pairs that wait; only answers of BytePS's servers to what they were not asked come here.
func (p *pending) ofAnyServer(x exchange) (found exchange, w unanswered, ok bool) {
	for of := range p.pairs {
		if of.worker != x.worker {
			continue
		}
		x.server = of.server
		if w, ok = p.at[x]; ok {
			return x, w, true
		}
	}
	return x, unanswered{}, false
}

// giveUpBefore gives up the requests of a pair that are older than r, if r itself is in flight,
// and returns their number. Servers may answer out of turn, so this is for the case that
// answers were missed.
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

// trim removes the answered requests at the head of a pair's list, which restores the invariant
// after a removal.
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

// oldest returns the oldest request in flight of each pair.
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

// forget forgets the requests of a pair and returns how many were in flight.
func (p *pending) forget(of pair) (n int) {
	for _, x := range p.pairs[of] {
		if _, waits := p.at[x]; waits {
			delete(p.at, x)
			n++
		}
	}
	delete(p.pairs, of)
	return n
}

// seenWindow is how far back a retransmission is recognized, in timestamps.
const seenWindow = 1024

// seenLimit bounds the sequences that are followed, 150 bytes each. Beyond it all are
// forgotten, and retransmissions of that moment count twice.
const seenLimit = 1 << 16

// A sequence is the requests, or the answers, of one customer between two nodes, whose
// timestamps ascend.
type sequence struct {
	worker, server, app, customer int32
	answers                       bool
}

// window is a bitmap of the last seenWindow timestamps, up to highest; timestamp t has bit t
// modulo seenWindow. It is the sliding window of RFC 4302 for replayed packets.
type window struct {
	highest int32
	bits    [seenWindow / 64]uint64
}

// seen recognizes the messages that PS_RESEND sends again because their ack is late.
type seen struct{ windows map[sequence]*window }

// newSeen returns one that has seen nothing.
func newSeen() *seen { return &seen{map[sequence]*window{}} }

// noteMessage records a request or an answer and reports whether it is new. A message older
// than the window counts as a retransmission, since timestamps ascend.
func (s *seen) noteMessage(r Request, answer bool) bool {
	key := sequence{int32(r.Worker), int32(r.Server), r.App, r.Customer, answer}
	w := s.windows[key]
	if w == nil {
		// Dropping everything is simpler than an order of age, and the limit is far above any
		// real job's number of sequences.
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
	// None of the old bits is within the new window.
	case ahead >= seenWindow:
		w.bits = [seenWindow / 64]uint64{}
		w.highest = r.Timestamp
	case ahead > 0:
		for t := int64(w.highest) + 1; t <= int64(r.Timestamp); t++ {
			// The slots of timestamps that were skipped still have bits of an earlier round.
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

// progress is how far a worker has come, counted in steps.
type progress struct {
	started   bool
	pushes    bool  // it has pushed; before that, its pulls are its steps
	timestamp int32 // of its newest step
	app       int32
	customer  int32
	stepTime  int64   // when that step began
	distance  float64 // between the timestamps of two steps; 0: unknown
	rested    bool    // steps may have passed unseen since
}

// step counts a step if the request begins one. A step is a round of pushes: those with one
// timestamp, to whichever servers. For a worker that has never pushed it is a round of pulls.
// If a worker has several customers, only the one that pushed first counts; otherwise a step
// would be counted once for each. The caller holds j.mu.
func (j *Locality) step(now *Interval, r Request) {
	for r.Worker >= len(j.progress) {
		j.progress = append(j.progress, progress{})
	}
	p := &j.progress[r.Worker]
	// Its pulls counted as steps until now. From its first push on, they no longer do.
	if r.Push && !p.pushes {
		*p = progress{pushes: true}
	}
	if !r.Push && p.pushes || !r.Push && !r.Pull {
		return
	}
	switch {
	case !p.started:
		p.started, p.app, p.customer = true, r.App, r.Customer
	// Another customer, or another server's part of the same round.
	case p.app != r.App || p.customer != r.Customer || r.Timestamp <= p.timestamp:
		return
	}
	n := p.stepsPassed(r.Timestamp)
	p.timestamp, p.stepTime = r.Timestamp, r.Time
	slot := j.seconds.at(r.Time)
	slot.steps = grown(slot.steps, r.Worker)
	slot.steps[r.Worker] += uint32(n)
	j.worker(r.Worker).step(r.Time, n)
	now.stepped(r.Worker, n)
	j.all.stepped(r.Worker, n)
}
