package aggregate

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/proxy/route"
)

// Link is what a [Queue] has to know of its connection's link. The functions do not block.
type Link struct {
	Scope       jobs.Scope // of the process that made the connection
	Destination netip.AddrPort
	// Wanted reports whether to sum pushes of a job, by its scheduler's address, whose keys
	// lie in a range.
	Wanted func(job string, keys measure.KeyRange) bool
	// Drops reports whether a rule leaves values out of pushes for good, or depending on what
	// this worker alone has pulled: then sums would not be what the server would have got.
	Drops func() bool
	// Adds reports whether the servers are known to add pushes; nil: they do.
	Adds func() bool
	// Routes knows which of the router's messages are parts of requests; nil: there is no router. It
	// is called without locks of this package.
	Routes relay.Routes
	// Wake has the relay ask for [Queue.Due] soon.
	Wake func()
	// Unsent returns how many bytes written to the link have yet to leave this host, and
	// Unacked how many have yet to arrive.
	Unsent, Unacked func() int
}

// Queue has what a worker's connection has to send, in order: it implements [relay.Gatherer].
// It is for the connection's goroutine, except for Said.
type Queue struct {
	table  *Table
	link   Link
	worker int32 // node id, from READY; Empty while unknown
	group  *group
	pair   *pair

	request int32 // timestamp of the worker's request that the push just looked at belongs to

	said atomic.Pointer[string] // why the last push was not summed, empty: it could be; nil: there was none

	// The rest is guarded by group.mu, once there is a group. items are the pushes that were
	// taken, in order.
	items   []*item
	out     []*batch // those of the items that are being written
	writing bool     // a push is being written, as far as its process has sent it
	seen    known    // pushes so far
	varies  bool     // it has pushed new lists of keys that it had pushed before
	round   int      // of its last push that varies, and
	turned  int32    // the timestamp of its request, of which there may be several parts
	absent  bool     // a batch has waited for it in vain since
	failed  error    // why the connection has to end; nil: it goes on
	ended   bool
}

// maxItems bounds the pushes of a connection that wait.
const maxItems = 1 << 12

// Queue returns the queue of a connection that a process of this host has made. The caller
// closes it.
func (t *Table) Queue(l Link) *Queue {
	return &Queue{table: t, link: l, worker: pslite.Empty, seen: newKnown()}
}

// Ready implements [relay.Greeter].
func (q *Queue) Ready(r zmtp.Ready) {
	if id, ok := pslite.ParseIdentity(r.Identity); ok && isRole(id, pslite.Worker) {
		q.worker = id
	}
}

// known finds the group, and returns why it cannot; empty: it has.
func (q *Queue) known() (why string) {
	switch {
	case q.group != nil:
		return ""
	case !q.link.Scope.Known():
		return Unscoped
	case q.worker == pslite.Empty:
		return Unknown
	}
	j, server := q.table.findJob(q.link.Scope, q.link.Destination)
	if j == nil || !isRole(server, pslite.Server) {
		return Unknown
	}
	q.group, q.pair = q.table.meet(j, q.worker, server)
	q.group.mu.Lock()
	defer q.group.mu.Unlock()
	q.group.addQueue(q)
	return ""
}

// isPush reports whether a message is a push with enough values to be summed, and their size, which
// is 0 for other messages.
// Of a large message only the leading frames are shown; then the size is that of the next
// one.
func (q *Queue) isPush(shown *relay.Message) (m *pslite.Message, size int, ok bool) {
	m, _, err := shown.Decode()
	if err != nil && !(shown.Rest && len(m.Data) == 1) {
		return m, 0, false
	}
	if !m.Meta.Data() || !m.Meta.Request || !m.Meta.Push || m.Meta.Pull || len(m.Data) == 0 {
		return m, 0, false
	}
	if size = int(min(shown.Next, Most+1)); !shown.Rest {
		size = len(m.Values().Bytes)
	}
	return m, size, size >= q.table.opts.Least
}

// excluded returns why a push cannot be summed whatever the others do; empty: it can be.
func (q *Queue) excluded(shown *relay.Message, m *pslite.Message, size int) string {
	_, dialect, _ := shown.Decode()
	var ok bool
	q.request, ok = q.wholeOf(m.Meta.Timestamp)
	switch s := subjectOf(m, size); {
	case dialect == pslite.BytePSRaw, m.Identity != nil, len(m.Meta.Body) > 0:
		return Kind
	case !ok:
		return Elsewhere
	case size > Most:
		return Large
	default:
		if !s.addable(q.table.opts.Chars) || size%unit(s.kind, q.table.opts.Chars) != 0 {
			return Kind
		}
	}
	return q.known()
}

// wholeOf returns the timestamp of the worker's request that a message with that timestamp belongs
// to. ok is false for the router's own messages that move keys: these go as they are.
func (q *Queue) wholeOf(timestamp int32) (whole int32, ok bool) {
	switch {
	case timestamp < route.FirstOwn:
		return timestamp, true
	case q.link.Routes == nil:
		return 0, false
	}
	return q.link.Routes.Whole(timestamp)
}

// refused is excluded for reasons that can change; the caller holds group.mu.
func (q *Queue) refused(s *subject) string {
	g := q.group
	switch {
	case g.resends.Load():
		return Resend
	case g.off != "":
		return g.off
	case q.table.ending.Load():
		return Retired
	case !q.link.Wanted(g.job, s.span()):
		return Unwanted
	case q.link.Adds != nil && !q.link.Adds():
		return Handler
	case q.link.Drops():
		return Rules
	case q.pair.hears == 0:
		return Unheard
	case len(g.queues) < 2:
		return Alone
	case !q.seen.recognize(s):
		return First
	case !g.trial.On():
		return Slower
	}
	return ""
}

// Wants implements [relay.Gatherer]: a large push is held only if it would be summed now.
func (q *Queue) Wants(shown *relay.Message) bool {
	m, size, ok := q.isPush(shown)
	why := ""
	if ok {
		why = q.excluded(shown, m, size)
	}
	if !ok || why != "" {
		return false
	}
	s := subjectOf(m, size)
	g := q.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if q.refused(&s) != "" {
		return false
	}
	return len(q.items) > 0 || g.opts.Wait > 0 || g.flying != nil || len(g.open) > 0 || !g.quiet()
}

// Take implements [relay.Gatherer].
func (q *Queue) Take(shown *relay.Message) relay.Taken {
	m, size, ok := q.isPush(shown)
	why := ""
	if ok {
		why = q.excluded(shown, m, size)
	}
	g := q.group
	if g == nil {
		if ok {
			q.say(why)
			q.table.mu.Lock()
			q.table.past.pass(why)
			q.table.mu.Unlock()
		}
		return relay.Passes
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !ok && size > 0 {
		q.skip(m)
	}
	var s subject
	if ok && why == "" {
		s = subjectOf(m, size)
		why = q.refused(&s)
	}
	if ok {
		q.say(why)
	}
	// A push of which only the beginning is held cannot be summed, as Wants has not asked for
	// all of it.
	if !ok || why != "" || shown.Rest {
		return q.pass(m, ok, why, &s)
	}
	return q.take(shown.Frames[len(shown.Frames)-len(m.Data)-1], m, &s)
}

// pass has a message go as it is, which may be a push, and that large enough to be summed. While
// pushes of the connection wait it waits behind them: order per connection is kept.
func (q *Queue) pass(m *pslite.Message, large bool, why string, s *subject) relay.Taken {
	if len(q.items) > 0 || q.failed != nil {
		return relay.Waits
	}
	if m.Meta.Data() && m.Meta.Request && m.Meta.Push {
		q.pair.sends(exchangeOf(&m.Meta))
	}
	if !large {
		return relay.Passes
	}
	q.writing = true
	if why != "" { // else the link was free when the push began
		q.group.counts.pass(why)
	}
	switch why {
	case "", First, Slower, NoRoom, Unheard: // for other reasons s may not be known
		q.seen.learn(s)
	}
	return relay.Passes
}

// take adds a push to an open batch, or opens one. Where the links are free and nothing waits
// it passes, since summing would only delay it.
func (q *Queue) take(meta []byte, m *pslite.Message, s *subject) relay.Taken {
	g, now := q.group, q.group.opts.now()
	add, _ := adderOf(s.kind, g.opts.Chars)
	values := m.Values().Bytes
	var b *batch
	if s.stay == nil && g.tested[s.handler()] {
		b = g.joinable(q, func(b *batch) bool { return b.stay == nil && b.subject.equal(s) })
	}
	switch {
	// A connection that is about to end takes nothing more; a worker that sends far ahead
	// waits.
	case q.failed != nil || len(q.items) >= maxItems:
		return relay.Waits
	// The values are added to the sum of an open batch: no memory is needed but for the item.
	case b != nil:
		add(b.sum, values)
	case len(q.items) == 0 && g.opts.Wait == 0 && g.flying == nil && len(g.open) == 0 && g.quiet():
		return q.pass(m, true, "", s)
	// Without memory the push waits for some, unless nothing of this group would free any.
	case !g.reserve(len(values) + s.listBytes()):
		if len(q.items) > 0 || g.bytes > 0 {
			g.starved[q] = true
			return relay.Waits
		}
		return q.pass(m, true, NoRoom, s)
	default:
		b = q.open(s, values, now)
	}
	q.seen.learn(s)
	q.turn(b)
	it := &item{queue: q, batch: b, meta: bytes.Clone(meta), exchange: exchangeOf(&m.Meta)}
	b.items = append(b.items, it)
	b.waiting++
	q.items = append(q.items, it)
	g.next(now)
	g.stir()
	return relay.Took
}

// sends notes that a push goes to the server.
func (p *pair) sends(e exchange) {
	if len(p.pending) < maxItems {
		p.pending[e] = true
	}
}

func exchangeOf(m *pslite.Meta) exchange { return exchange{m.AppID, m.CustomerID, m.Timestamp} }

// Due implements [relay.Gatherer]. The item at the head goes if it is the chosen carrier,
// with the sum, or if its batch is over, with zeros.
func (q *Queue) Due() (frames [][]byte, err error) {
	g := q.group
	if g == nil {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if q.failed != nil {
		return nil, fmt.Errorf("%w", q.failed)
	}
	if len(q.items) == 0 {
		return nil, nil
	}
	it := q.items[0]
	b := it.batch
	values := b.sum
	switch {
	// The carrier goes now. What joins from here on is in the next batch.
	case b.state == isChosen && b.carrier == it:
		g.goes(b, g.opts.now())
	// The carrier's answer has been heard: the values are at the server.
	case b.state == isOver:
		g.counts.Carried++
		g.counts.SparedBytes += uint64(b.size)
		if len(g.zeros) < b.size {
			g.zeros = make([]byte, b.size)
		}
		values = g.zeros[:b.size:b.size]
	default:
		return nil, nil
	}
	q.pair.sends(it.exchange)
	// The slice's head is dropped; the pointer would keep the item alive.
	q.items[0] = nil
	q.items = q.items[1:]
	q.out = append(q.out, b)
	q.writing = true
	frames = [][]byte{it.meta, b.keys, values}
	if b.lens != nil {
		frames = append(frames, b.lens)
	}
	return frames, nil
}

// Written implements [relay.Gatherer]. The memory of what was written is released.
func (q *Queue) Written() {
	g := q.group
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !q.writing {
		return
	}
	q.writing = false
	g.noteWritten(q)
	g.next(g.opts.now())
}

// Waiting implements [relay.Gatherer].
func (q *Queue) Waiting() bool {
	g := q.group
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(q.items) > 0 || q.failed != nil
}

// Rests implements [relay.Gatherer]. Where a link ends in order everything sent has arrived;
// what waits goes over the next link, but cannot go to another proxy.
func (q *Queue) Rests() bool { return !q.table.ending.Load() || !q.Waiting() }

// GoOn has the queue go on over another link. No method of it may be running.
func (q *Queue) GoOn(l Link) {
	if q.group == nil {
		q.link = l
		return
	}
	q.group.mu.Lock()
	defer q.group.mu.Unlock()
	q.link, q.writing = l, false
	q.group.noteWritten(q)
}

// Close removes the queue; its connection has ended.
func (q *Queue) Close() {
	if g := q.group; g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.removeQueue(q, g.opts.now())
	}
}

// poke has the connection check whether something is due; the caller holds group.mu. It does
// not block.
func (q *Queue) poke() { q.link.Wake() }

// fail has the connection end with an error; the caller holds group.mu.
func (q *Queue) fail(why error) {
	q.failed = why
	q.poke()
}
