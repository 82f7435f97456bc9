package aggregate

import (
	"slices"
	"sync"
	"time"
)

// group is what workers of this host push to one server of a job. It holds that
//
//   - bytes is the sum of the sizes of all sums that are kept, and at most opts.Bytes;
//   - a batch is in open until a carrier is chosen, then flying until its bytes have
//     left, and in sent until it is answered, where it carries others;
//   - an item's queue has it until it goes.
type group struct {
	opts  *Options
	job   string // scheduler's address
	trial *trial // the job's; nil: none

	mu      sync.Mutex // guards the rest, and all queues' and pairs' state
	queues  map[*Queue]bool
	open    []*batch // the oldest first
	flying  *batch   // chosen, and not all of it has left; nil: the links are free, for all that is known
	sent    []*batch // with others' values, not answered
	bytes   int
	starved map[*Queue]bool // that wait for bytes
	off     string          // why nothing is summed any more
	ticking bool
	counts  Counts
}

// batch is pushes of one subject, of several connections.
type batch struct {
	subject
	sum      []byte
	began    time.Time
	items    []*item
	carrier  *item
	state    state
	left     time.Time // since when all of the sum has left; zero: it has not
	breaks   uint64    // of the carrier's pair, when it went
	deadline time.Time
}

type state int

const (
	isOpen   state = iota
	isChosen       // it has a carrier
	isSent         // which has gone, or is about to be written
	isOver         // its server has answered
)

// item is one push.
type item struct {
	queue *Queue
	batch *batch
	meta  []byte
	exchange
}

// exchange is what a request has in common with its answer.
type exchange struct{ app, customer, timestamp int32 }

const (
	// lowWater is how many bytes a link may have left to send and yet be free.
	lowWater = 64 << 10
	// afterEnd is how long the answer to a carrier is waited for whose connection has
	// ended.
	afterEnd = 2 * time.Second
	// tickBusy is how often it is looked whether a link is free while pushes wait for
	// it, and tickIdle how often whether answers are late.
	tickBusy = time.Millisecond
	tickIdle = 50 * time.Millisecond
)

func newGroup(o *Options, j *job) *group {
	return &group{opts: o, job: j.scheduler, trial: j.trial, queues: map[*Queue]bool{}, starved: map[*Queue]bool{}}
}

func (g *group) figures() Counts {
	g.mu.Lock()
	defer g.mu.Unlock()
	var c Counts
	c.addCounts(g.counts)
	c.HeldBytes = uint64(g.bytes)
	return c
}

func (g *group) waits() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for q := range g.queues {
		if len(q.items) > 0 {
			return true
		}
	}
	return false
}

// All methods from here on are called with mu locked.

// quiet reports whether the links have sent what they had.
func (g *group) quiet() bool {
	for q := range g.queues {
		if q.writing || q.link.Unsent() > lowWater {
			return false
		}
	}
	return true
}

// joinable returns the oldest open batch of a subject that has nothing of a queue.
func (g *group) joinable(q *Queue, fits func(b *batch) bool) *batch {
	for _, b := range g.open {
		if fits(b) && !slices.ContainsFunc(b.items, func(it *item) bool { return it.queue == q }) {
			return b
		}
	}
	return nil
}

// reserve takes room for n bytes.
func (g *group) reserve(n int) bool {
	if g.bytes+n > g.opts.Bytes || g.opts.Memory != nil && !g.opts.Memory.TryReserve(n) {
		return false
	}
	g.bytes += n
	return true
}

// releaseMemory gives the memory of a sum back.
func (g *group) releaseMemory(b *batch) {
	n := len(b.sum)
	if n == 0 {
		return
	}
	b.sum = nil
	g.bytes -= n
	if g.opts.Memory != nil {
		g.opts.Memory.Unreserve(n)
	}
	for q := range g.starved {
		q.poke()
	}
	clear(g.starved)
}

// ripe reports whether a batch need not wait for others.
func (g *group) ripe(b *batch, now time.Time) bool {
	if g.opts.Wait == 0 || now.Sub(b.began) >= g.opts.Wait {
		return true
	}
	for q := range g.queues {
		if q.seen[b.about()] && !slices.ContainsFunc(b.items, func(it *item) bool { return it.queue == q }) {
			return false
		}
	}
	return true
}

// next chooses the batch that goes next, and its carrier: a worker of whose connection
// nothing else has to go before.
func (g *group) next(now time.Time) {
	if g.flying != nil && (g.flying.state == isChosen || !g.quiet()) {
		return
	}
	g.flying = nil
	if len(g.open) == 0 || !g.quiet() {
		return
	}
	for i, b := range g.open {
		if !g.ripe(b, now) {
			continue
		}
		for _, it := range b.items {
			if len(it.queue.items) == 0 || it.queue.items[0] != it {
				continue
			}
			b.carrier, b.state, g.flying = it, isChosen, b
			g.open = slices.Delete(g.open, i, i+1)
			it.queue.poke()
			return
		}
	}
}

// goes notes that a batch's carrier is about to be written.
func (g *group) goes(b *batch, now time.Time) {
	b.state = isSent
	if len(b.items) == 1 {
		g.counts.Alone++
		return
	}
	g.counts.Sums++
	g.trial.sums()
	b.breaks, b.deadline = b.carrier.queue.pair.breaks, now.Add(g.opts.AnswerWithin)
	g.sent = append(g.sent, b)
}

// answered takes in that the server has answered a push of a worker's.
func (g *group) answered(p *pair, e exchange) {
	for i, b := range g.sent {
		if b.carrier.queue.pair == p && b.carrier.exchange == e {
			g.sent = slices.Delete(g.sent, i, i+1)
			g.over(b)
			return
		}
	}
}

// over lets the pushes that a batch carried go.
func (g *group) over(b *batch) {
	b.state = isOver
	for _, it := range b.items {
		if q := it.queue; len(q.items) > 0 && q.items[0] == it {
			q.poke()
		}
	}
}

// tick handles timeouts, and returns the time until the next one; 0: none.
func (g *group) tick(now time.Time) time.Duration {
	g.next(now)
	for _, b := range slices.Clone(g.sent) {
		g.judge(b, now)
	}
	switch {
	case len(g.open) > 0 || g.flying != nil:
		return tickBusy
	case len(g.sent) > 0:
		return tickIdle
	}
	return 0
}

// judge looks whether the answer to a batch's carrier can still come.
func (g *group) judge(b *batch, now time.Time) {
	q := b.carrier.queue
	if q.ended {
		if end := now.Add(afterEnd); b.left.IsZero() && end.Before(b.deadline) {
			b.left, b.deadline = now, end
		}
	} else if b.left.IsZero() {
		b.deadline = now.Add(g.opts.AnswerWithin)
		if !q.writing && q.link.Unacked() == 0 {
			b.left = now
		}
	}
	if now.Before(b.deadline) {
		return
	}
	g.sent = slices.DeleteFunc(g.sent, func(o *batch) bool { return o == b })
	if !q.ended && b.breaks == q.pair.breaks && q.pair.hears > 0 {
		g.off = Sums // it waits for the others' pushes, which are here
		g.over(b)
		return
	}
	g.lose(b)
}

// lose ends the connections of the pushes that a batch carried: whether the carrier
// has arrived is not known, and it is not answered.
func (g *group) lose(b *batch) {
	b.state = isOver
	for _, it := range b.items {
		if it != b.carrier && !it.queue.ended && slices.Contains(it.queue.items, it) {
			g.counts.Lost++
			it.queue.fail()
		}
	}
}

// addQueue takes a queue in. Where its worker had a connection before, it may be another
// process, that numbers its pushes alike: an answer to a carrier of the one before could
// not be distinguished from one to its own.
func (g *group) addQueue(q *Queue) {
	g.queues[q] = true
	for _, b := range slices.Clone(g.sent) {
		if b.carrier.queue.pair == q.pair {
			g.sent = slices.DeleteFunc(g.sent, func(o *batch) bool { return o == b })
			g.lose(b)
		}
	}
}

// removeQueue takes a queue out whose connection has ended, with what it has not sent. What
// others' pushes were added to goes on with them.
func (g *group) removeQueue(q *Queue, now time.Time) {
	if q.ended {
		return
	}
	q.ended = true
	delete(g.queues, q)
	delete(g.starved, q)
	if b := g.flying; b != nil && b.carrier.queue == q && b.state == isChosen {
		b.carrier, b.state, g.flying = nil, isOpen, nil // nothing of it has gone
		g.open = slices.Insert(g.open, 0, b)
	}
	for _, b := range slices.Clone(g.open) {
		b.items = slices.DeleteFunc(b.items, func(it *item) bool { return it.queue == q })
		if len(b.items) == 0 {
			g.open = slices.DeleteFunc(g.open, func(o *batch) bool { return o == b })
			g.releaseMemory(b)
		}
	}
	for _, b := range q.out {
		g.releaseMemory(b)
	}
	q.items, q.out, q.writing = nil, nil, false
	g.next(now)
}

// stir has tick called while something waits.
func (g *group) stir() {
	if g.ticking || g.opts.manual {
		return
	}
	g.ticking = true
	go func() {
		for wait := tickBusy; wait > 0; {
			time.Sleep(wait)
			g.mu.Lock()
			wait = g.tick(g.opts.now())
			g.ticking = wait > 0
			g.mu.Unlock()
		}
	}()
}
