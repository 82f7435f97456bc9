package aggregate

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/proxy/payoff"
)

// group has what workers of this host push to one server of a job.
//
// Invariants:
//   - bytes is the total size of the sums that are kept, and of the lists of batches with items that have not been
//     written. It is at most opts.Bytes;
//   - open is in the order of numbers. A batch is in it until a carrier is chosen, then it is flying until its bytes
//     have left this host; it is in sent until it is answered, if it carries others' values. One that has given all
//     its values to others leaves open, and has no carrier;
//   - a batch gives values only to batches with lower numbers, and only while it is open. Since these have gone, and
//     are answered or lost in the end, no batch waits for ever, and none in a circle;
//   - after is, for a batch that has not gone, the number of batches that have it among givers and are not answered;
//   - an item is in its queue until it goes, in the order of its connection;
//   - pushes join a batch, and batches give values, only if the handler was tested. Nothing is chosen while there is alone.
type group struct {
	opts    *Options
	job     string // the scheduler's address
	server  int32
	trial   *payoff.Trial // the job's; nil: none
	resends *atomic.Bool  // the job's

	// mu guards the fields below, and the state of all queues and pairs of the group.
	mu      sync.Mutex
	queues  map[*Queue]bool
	pairs   map[int32]*pair  // by worker
	open    []*batch         // no carrier yet; the oldest first
	opened  uint64           // batches so far
	round   int              // the highest of any queue
	flying  *batch           // chosen, and not all of it has left; nil: the links are free, as far as is known
	sent    []*batch         // with others' values, and not answered; and alone
	alone   *batch           // goes with its worker's values alone, while others wait; nil: none does
	beside  *item            // waits beside alone, or what was chosen to go alone; nil: nothing
	tested  map[handler]bool // handlers that have answered a push while others waited here
	wanting time.Time        // since when a push is to go alone and cannot; zero: none is
	bytes   int
	zeros   []byte          // values of carried pushes; as large as the largest so far, and never written to
	starved map[*Queue]bool // queues that wait for bytes
	off     string          // why nothing is summed any more; empty: it is
	ticking bool
	counts  Counts
}

const (
	// lowWater is how many unsent bytes a link may have and still count as free: the kernel
	// must not run dry.
	lowWater = 64 << 10
	// afterEnd is how long the answer to a carrier is waited for after its connection has
	// ended.
	afterEnd = 2 * time.Second
	// tickBusy is how often links are checked while pushes wait for them, and tickIdle how
	// often late answers are.
	tickBusy = time.Millisecond
	tickIdle = 50 * time.Millisecond
)

func newGroup(o *Options, j *job, server int32) *group {
	return &group{opts: o, job: j.scheduler, server: server, trial: j.trial, resends: j.resends,
		queues: map[*Queue]bool{}, pairs: map[int32]*pair{}, tested: map[handler]bool{}, starved: map[*Queue]bool{}}
}

// figures returns the group's counts.
func (g *group) figures() Counts {
	g.mu.Lock()
	defer g.mu.Unlock()
	var c Counts
	c.addCounts(g.counts)
	c.HeldBytes = uint64(g.bytes)
	return c
}

// waits reports whether any push that was taken has yet to go.
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

// pairOf returns the pair of a worker and the group's server.
func (g *group) pairOf(worker int32) *pair {
	p := g.pairs[worker]
	if p == nil {
		p = &pair{worker: worker, pending: map[exchange]bool{}}
		g.pairs[worker] = p
	}
	return p
}

// quiet reports whether all links to the server have sent what they had.
func (g *group) quiet() bool {
	for q := range g.queues {
		if q.writing || q.link.Unsent() > lowWater {
			return false
		}
	}
	return true
}

// joinable returns the oldest open batch that fits and has no push of the queue yet.
func (g *group) joinable(q *Queue, fits func(b *batch) bool) *batch {
	for _, b := range g.open {
		if fits(b) && !b.has(q) {
			return b
		}
	}
	return nil
}

// ripe reports whether a batch need not wait any longer for pushes of other workers: all that
// are to be expected are there, or it has waited for Options.Wait.
func (g *group) ripe(b *batch, now time.Time) bool {
	if g.opts.Wait == 0 || b.isRipe || now.Sub(b.began) >= g.opts.Wait || len(g.open) > 1 && !g.tested[b.handler()] {
		return true
	}
	for q := range g.queues {
		if b.expects(q) {
			return false
		}
	}
	return true
}

// next chooses the batch that goes next, and its carrier: an item at the head of its queue,
// so that nothing has to go before it. A batch that has given values away waits for the answers
// to those. It does nothing while a batch is flying: one sum at a time, so that pushes have time
// to join the next one.
func (g *group) next(now time.Time) {
	if g.alone != nil || g.flying != nil && (g.flying.state == isChosen || !g.quiet()) {
		return
	}
	g.flying = nil
	if len(g.open) == 0 {
		g.wanting = time.Time{}
	}
	if len(g.open) == 0 || !g.quiet() {
		return
	}
	for i, b := range g.open {
		if b.after > 0 || !g.ripe(b, now) {
			continue
		}
		for _, it := range b.items {
			if len(it.queue.items) == 0 || it.queue.items[0] != it {
				continue
			}
			beside, ok := g.mayGo(it, now)
			if !ok {
				return
			}
			g.beside = beside
			g.excuse(b)
			b.carrier, b.state, g.flying = it, isChosen, b
			g.open = slices.Delete(g.open, i, i+1)
			it.queue.poke()
			return
		}
	}
}

// goes notes that a batch's carrier is about to be written, and has it carry what younger batches
// have for the same keys. One that carries nothing is a plain push.
func (g *group) goes(b *batch, now time.Time) {
	b.state = isSent
	if g.beside != nil {
		g.alone = b
		g.awaits(b, now)
		return
	}
	if g.tested[b.handler()] {
		g.carry(b)
	}
	if b.given > 0 {
		g.counts.Partial++
		g.counts.SparedBytes += uint64(b.given)
	}
	if len(b.items) == 1 && len(b.givers) == 0 {
		if b.given == 0 {
			g.counts.Alone++
		}
		return
	}
	g.counts.Sums++
	g.trial.Use(1)
	g.awaits(b, now)
}

// carry moves to b's sum what open batches that are younger have for the same keys.
func (g *group) carry(b *batch) {
	add, _ := adderOf(b.kind, g.opts.Chars)
	for _, o := range slices.Clone(g.open) {
		if o.number < b.number {
			continue
		}
		// All that were to come have come, or were waited for: the others wait no longer.
		o.isRipe = o.isRipe || b.varies && o.varies
		n := b.fold(o, add)
		if n == 0 {
			continue
		}
		o.given += n
		o.after++
		o.isRipe = true
		b.givers = append(b.givers, o)
		if o.given == len(o.sum) {
			o.state = isGiven
			g.removeOpen(o)
		}
	}
}

// removeOpen takes a batch that does not go out of open, and releases its sum.
func (g *group) removeOpen(b *batch) {
	g.open = slices.DeleteFunc(g.open, func(o *batch) bool { return o == b })
	g.releaseMemory(b)
}

// awaits has the answer to a batch's carrier be waited for.
func (g *group) awaits(b *batch, now time.Time) {
	b.breaks, b.deadline = b.carrier.queue.pair.breaks, now.Add(g.opts.AnswerWithin)
	g.sent = append(g.sent, b)
}

// answered handles the server's answer to a push of a worker, which may be a carrier. since is
// that of the Hearer.
func (g *group) answered(p *pair, e exchange, since uint64) {
	delete(p.pending, e)
	for i, b := range g.sent {
		if b.carrier.queue.pair == p && b.carrier.exchange == e {
			g.sent = slices.Delete(g.sent, i, i+1)
			if b == g.alone {
				g.wasAlone(b.number >= since)
			}
			g.over(b)
			break
		}
	}
	g.next(g.opts.now())
}

// over lets the pushes go that a batch has carried, as far as no other carries some of their
// values.
func (g *group) over(b *batch) {
	b.state = isOver
	for _, it := range b.items {
		if q := it.queue; len(q.items) > 0 && q.items[0] == it {
			q.poke()
		}
	}
	for _, o := range b.givers {
		if o.after--; o.after == 0 && o.state == isGiven {
			g.over(o)
		}
	}
	b.givers = nil
}

// tick does what depends on time, and returns when it has to be called next; 0: not at all.
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

// judge checks whether the answer to a batch's carrier can still come:
//
//   - the carrier's bytes have not all left: the deadline has not begun;
//   - the connections are all as they were, and the answer is late: the server stands still, and the others wait, since
//     what they pushed may not have been added yet. If the push went alone it is another matter (handler.go);
//   - the carrier's connection, or one over which the answer would come, has ended: the batch is lost.
func (g *group) judge(b *batch, now time.Time) {
	q := b.carrier.queue
	if q.ended {
		// Also where all of it has left: as a rule the worker is gone, and with it the connection
		// over which the answer would come.
		if end := now.Add(afterEnd); end.Before(b.deadline) {
			b.deadline = end
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
	late := !q.ended && b.breaks == q.pair.breaks && q.pair.hears > 0
	if late && b != g.alone {
		b.deadline = now.Add(g.opts.AnswerWithin)
		g.opts.Log.Warn("a server has not answered a sum of pushes; those in it wait for its answer", "job", g.job, "server", g.server, "pushes", len(b.items), "since", b.left)
		return
	}
	g.giveUp(b, late)
	g.next(now)
}

// giveUp stops waiting for the answer to a sent batch. late says that it is the server that does not answer.
func (g *group) giveUp(b *batch, late bool) {
	g.sent = slices.DeleteFunc(g.sent, func(o *batch) bool { return o == b })
	if b == g.alone {
		if late {
			g.off = Sums // it waits for the others' pushes, which are here
		}
		g.wasAlone(false)
	}
	g.lose(b)
}

// lose ends the connections of the pushes that a batch has carried, even in part: it is unknown
// whether the carrier has arrived, and nobody will answer it.
func (g *group) lose(b *batch) {
	b.state = isOver
	for _, it := range b.items {
		if it != b.carrier && !it.queue.ended && slices.Contains(it.queue.items, it) {
			g.counts.Lost++
			it.queue.fail(ErrLost)
		}
	}
	for _, o := range b.givers {
		if o.state == isOver { // lost by another
			continue
		}
		g.removeOpen(o)
		g.lose(o) // it has not gone, and so it has no givers
	}
	b.givers = nil
}

// addQueue adds a queue. Its worker may have had a connection before, as another process that
// numbers its pushes alike: an answer to a carrier of that one could not be told from one to
// its own, so such batches are lost.
func (g *group) addQueue(q *Queue) {
	g.queues[q] = true
	for _, b := range slices.Clone(g.sent) {
		if b.carrier.queue.pair == q.pair {
			g.giveUp(b, false)
		}
	}
}

// removeQueue removes a queue whose connection has ended, with what it has not sent. A sum
// that it was to carry goes on with another carrier.
func (g *group) removeQueue(q *Queue, now time.Time) {
	if q.ended {
		return
	}
	q.ended = true
	delete(g.queues, q)
	delete(g.starved, q)
	if b := g.flying; b != nil && b.carrier.queue == q && b.state == isChosen {
		b.carrier, b.state, g.flying = nil, isOpen, nil // nothing of it has gone
		at := slices.IndexFunc(g.open, func(o *batch) bool { return o.number > b.number })
		if at < 0 {
			at = len(g.open)
		}
		g.open = slices.Insert(g.open, at, b)
	}
	// The removed values stay in the sum of a batch that others share. The push counts as
	// sent then, though its worker will never hear of it: as with a connection that breaks
	// after the server has got a push.
	unsent := slices.Clone(g.open)
	if b := g.flying; b != nil && b.state == isChosen {
		unsent = append(unsent, b) // it may be open again when its carrier ends
	}
	for _, b := range unsent {
		b.items = slices.DeleteFunc(b.items, func(it *item) bool { return it.queue == q })
		if len(b.items) == 0 {
			g.removeOpen(b)
		}
	}
	g.noteWritten(q)
	for _, it := range q.items {
		g.leave(it.batch)
	}
	q.items, q.out, q.writing = nil, nil, false
	g.next(now)
}

// stir starts the goroutine that calls tick while anything waits. It ends by itself.
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
