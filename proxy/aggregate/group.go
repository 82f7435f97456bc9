package aggregate

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
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
//   - an item is in its queue until it goes, in the order of its connection. With PS_RESEND it is queued again for each
//     repetition; an open batch has an item that is queued, or it is dissolved.
type group struct {
	opts   *Options
	job    string // the scheduler's address
	server int32
	dir    string // of the files about pushes of a job with PS_RESEND; empty: there are none, and nothing of it is summed
	trial  *trial // the job's; nil: none

	// mu guards the fields below, and the state of all queues and pairs of the group.
	mu      sync.Mutex
	queues  map[*Queue]bool
	pairs   map[int32]*pair // by worker
	fresh   map[int32]bool  // workers whose processes have started since this proxy has
	loaded  map[string]bool // files of other proxies that were read
	open    []*batch        // no carrier yet; the oldest first
	opened  uint64          // batches so far
	round   int             // the highest of any queue
	flying  *batch          // chosen, and not all of it has left; nil: the links are free, as far as is known
	sent    []*batch        // with others' values, and not answered
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

// newGroup returns the group of a server of a job, with what the proxy before this one has left
// of it.
func newGroup(o *Options, j *job, server int32) *group {
	g := &group{opts: o, job: j.scheduler, server: server, trial: j.trial, queues: map[*Queue]bool{}, pairs: map[int32]*pair{},
		fresh: maps.Clone(j.fresh), loaded: map[string]bool{}, starved: map[*Queue]bool{}}
	if j.dir != "" {
		g.dir = filepath.Join(j.dir, strconv.Itoa(int(server)))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.load()
	return g
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
		p = &pair{worker: worker, past: past{isFresh: g.fresh[worker]}}
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
	if g.opts.Wait == 0 || b.isRipe || now.Sub(b.began) >= g.opts.Wait {
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
	if g.flying != nil && (g.flying.state == isChosen || !g.quiet()) {
		return
	}
	g.flying = nil
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
	g.carry(b)
	if b.given > 0 {
		g.counts.Partial++
		g.counts.SparedBytes += uint64(b.given)
	}
	if len(b.items) == 1 && len(b.givers) == 0 {
		if b.given == 0 {
			g.counts.Alone++
			g.settle(b.carrier) // as it came: so does a repetition
		}
		return
	}
	g.counts.Sums++
	g.trial.sums()
	b.breaks, b.deadline = b.carrier.queue.pair.breaks, now.Add(g.opts.AnswerWithin)
	if b.repeats {
		b.holds = true
		b.waiting++
	}
	g.sent = append(g.sent, b)
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

// answered handles the server's answer to a push of a worker, which may be a carrier.
func (g *group) answered(p *pair, e exchange) {
	if it := p.taken[e]; it != nil {
		g.settle(it)
	}
	for i, b := range g.sent {
		if b.carrier.queue.pair == p && b.carrier.exchange == e {
			g.sent = slices.Delete(g.sent, i, i+1)
			g.over(b)
			g.next(g.opts.now())
			return
		}
	}
}

// over lets the pushes go that a batch has carried, as far as no other carries some of their
// values.
func (g *group) over(b *batch) {
	b.state = isOver
	g.unhold(b)
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

// judge checks whether the answer to a batch's carrier can still come. There are three ends
// to the wait:
//
//   - the connections are all as they were, and the answer is late: the server waits for the other pushes, which are held
//     here. It answers pushes together; summing ends, and the pushes go;
//   - the carrier's connection, or one over which the answer would come, has ended: the batch is lost;
//   - the carrier's bytes have not all left: the deadline has not begun.
func (g *group) judge(b *batch, now time.Time) {
	if b.repeats {
		g.judgeRepeated(b, now)
		return
	}
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
	g.sent = slices.DeleteFunc(g.sent, func(o *batch) bool { return o == b })
	if !q.ended && b.breaks == q.pair.breaks && q.pair.hears > 0 {
		g.off = Sums // it waits for the others' pushes, which are here
		g.over(b)
		return
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
// its own, so such batches are lost. With PS_RESEND it shows in the pushes whether it is another.
func (g *group) addQueue(q *Queue) {
	g.queues[q] = true
	g.beginPair(q.pair)
	for _, b := range slices.Clone(g.sent) {
		if b.carrier.queue.pair == q.pair && !b.repeats {
			g.sent = slices.DeleteFunc(g.sent, func(o *batch) bool { return o == b })
			g.lose(b)
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
	// after the server has got a push. With PS_RESEND it stays in the batch and comes again.
	unsent := slices.Clone(g.open)
	if b := g.flying; b != nil && b.state == isChosen {
		unsent = append(unsent, b) // it may be open again when its carrier ends
	}
	for _, b := range unsent {
		if b.repeats {
			continue
		}
		b.items = slices.DeleteFunc(b.items, func(it *item) bool { return it.queue == q })
		if len(b.items) == 0 {
			g.removeOpen(b)
		}
	}
	g.noteWritten(q)
	for _, it := range q.items {
		it.queued = false
		g.leave(it.batch)
	}
	for _, b := range unsent {
		if b.repeats && !slices.ContainsFunc(b.items, func(it *item) bool { return it.queued }) {
			g.dissolve(b)
		}
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
