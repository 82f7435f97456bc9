package aggregate

import (
	"bytes"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// batch has the pushes of one subject, of several connections, at most one of each.
type batch struct {
	subject
	number   uint64 // of those of the group, in the order in which they were opened
	sum      []byte // without what was given to others, where it has zeros
	began    time.Time
	items    []*item
	carrier  *item // nil while open
	state    state
	varies   bool      // the worker that opened it pushes ever new lists
	round    int       // of that worker, where it varies
	isRipe   bool      // it does not wait for other workers' pushes
	lists    int       // bytes that are reserved for the subject's lists, until nothing waits
	waiting  int       // items that have not been written
	given    int       // bytes of values that others carry
	after    int       // batches that carry them and are not answered: it goes after those
	givers   []*batch  // batches some of whose values it carries
	left     time.Time // since when all of the sum has left; zero: not all has
	breaks   uint64    // of the carrier's pair, when it went
	deadline time.Time // for its answer
}

// open opens a batch with the queue's push.
func (q *Queue) open(s *subject, values []byte, now time.Time) *batch {
	g := q.group
	g.opened++
	b := &batch{subject: s.clone(), number: g.opened, sum: bytes.Clone(values), lists: s.listBytes(), began: now}
	b.layOut(unit(b.kind, g.opts.Chars))
	// A list that is new but for its keys shows that lists vary. Those that come again later do
	// so as well.
	q.varies = q.varies || b.isNew && b.row > 0
	b.varies = q.varies && b.row > 0
	g.open = append(g.open, b)
	return b
}

// has reports whether a batch has a push of a queue's worker.
func (b *batch) has(q *Queue) bool {
	return slices.ContainsFunc(b.items, func(it *item) bool { return it.queue == q || it.queue.pair == q.pair })
}

// state is how far a batch has come.
type state int

const (
	isOpen   state = iota
	isChosen       // it has a carrier
	isSent         // the carrier has gone, or is about to be written
	isGiven        // all of its values are in sums that have gone
	isOver         // the server has answered, or the batch is lost
)

// item is one push.
type item struct {
	queue *Queue
	batch *batch
	meta  []byte
	exchange
}

// exchange identifies a request and its answer on a pair's connections.
type exchange struct{ app, customer, timestamp int32 }

// turn notes that the queue pushes to b, of a list that varies: it is in the next round then, or in
// that of the others, if these are ahead. Parts of one request that the router did not put into one
// message are of one round.
func (q *Queue) turn(b *batch) {
	if !b.varies {
		return
	}
	q.advance()
	if len(b.items) == 0 {
		b.round = q.round
	}
}

// advance notes that the queue pushes a list that varies, of q.request.
func (q *Queue) advance() {
	g := q.group
	if q.round == 0 || q.request != q.turned {
		q.round, q.turned = max(q.round+1, g.round), q.request
	}
	q.absent = false
	g.round = max(g.round, q.round)
}

// skip notes a push that is too small to be summed. Where lists vary, batches of its step wait for
// no other of the queue's.
func (q *Queue) skip(m *pslite.Message) {
	if whole, ok := q.wholeOf(m.Meta.Timestamp); ok && q.varies {
		q.request = whole
		q.advance()
	}
}

// expects reports whether a queue may bring a push that b can carry, and has not yet: one of the
// same keys, which it has pushed before, or, where lists vary, of keys that overlap. Nobody can
// tell by such lists which pushes belong together: a worker that has pushed as often as the one
// that waits counts as in the same step, and may not push again before that one is answered.
func (b *batch) expects(q *Queue) bool {
	if b.has(q) || b.varies && slices.ContainsFunc(q.items, func(it *item) bool { return it.batch.state == isOpen && it.batch.mixes(&b.subject) }) {
		return false
	}
	if b.varies && q.varies {
		return !q.absent && q.round < b.round
	}
	return q.seen.lists[b.about()]
}

// excuse notes for which queues b has waited in vain. None of them is waited for again until it
// pushes, which then counts as a push of the next round.
func (g *group) excuse(b *batch) {
	if g.opts.Wait == 0 || !b.varies {
		return
	}
	for q := range g.queues {
		if b.expects(q) {
			q.round, q.absent = max(q.round, b.round), true
		}
	}
}

// fold moves to b's sum what o has for the same keys, if that is enough of it, and returns how
// many bytes it was. In o these values are zeros from then on, and their keys stay.
func (b *batch) fold(o *batch, add adder) (n int) {
	if !b.mixes(&o.subject) {
		return 0
	}
	for r := range commonRuns(&b.subject, &o.subject) {
		n += r.n
	}
	part := leastPart
	if o.given > 0 {
		part = leastMore
	}
	if n == 0 || part*n < len(o.sum) {
		return 0
	}
	if o.stay == nil {
		o.stay = make([]bool, len(o.keys)/8)
	}
	for r := range commonRuns(&b.subject, &o.subject) {
		values := o.sum[r.b : r.b+r.n]
		add(b.sum[r.a:r.a+r.n], values)
		clear(values)
		for i := range r.keys {
			o.stay[r.first+i] = true
		}
	}
	return n
}
