package route

import (
	"maps"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// worker is the state of one worker.
//
// Invariants: each split in splits belongs to entries of open, under all timestamps that its parts
// have; each timestamp of the router's own is in splits or in ops, never in both. Without PS_RESEND
// a request is in open or in a queue, not in both.
type worker struct {
	id     int32
	ledger Ledger
	gone   bool                // another host has it
	open   map[request]entry   // sent, and not answered
	splits map[int32][]*split  // by the timestamp of their parts; several where those are joint
	ops    map[int32]*letter   // the router's own messages without an answer, likewise
	queues map[int32][]waiting // by server, in the order in which they came
	asked  bool                // it has made a request
	pushed bool                // a push was among them
	// An answer has come. In a job with PS_RESEND an ACK would have come before it, so from then on
	// resend is known to be false, and slices may be gathered.
	answered bool
	slicings map[sequence]*slicing
	gathers  map[gathering]*gather
	wholes   []whole // the last requests that cannot be split, by timestamp; nil: none, or all keys are at home
	// lens means that keys may have different numbers of values. width is the number of bytes per
	// key in its pushes without lengths, 0 while unknown.
	lens   bool
	width  int
	speaks pslite.Dialect
	// inFlight is the number of splits.
	inFlight int
}

// request identifies a request among those of its worker; server is a rank. With PS_RESEND the
// customer is 0: an ACK names a message by its signature, which does not include the customer.
type request struct{ server, app, customer, timestamp int32 }

// entry is a request in flight.
type entry struct {
	generation uint32
	flags      Flags
	split      *split // nil: it passed as it was
	kept       bool   // it was in the ledger when the worker was added
}

// waiting is a request in a queue.
type waiting struct {
	id      request
	message pslite.Message // its frames and meta are the router's memory
	dialect pslite.Dialect
}

// request returns the identity of a request of a worker.
func (r *Router) request(server int32, m *pslite.Meta) request {
	id := request{server, m.AppID, m.CustomerID, m.Timestamp}
	if r.resend {
		id.customer = 0
	}
	return id
}

// Request is shown the beginning of a worker's data request to a server: meta and keys, which need
// not stay valid. It returns true where the message passes as it is, values unread; the request is
// then in flight. Otherwise the caller must read the whole message and give it to [Router.Take].
// Messages that the router makes in the worker's name are in dialect d from then on.
//
// A request that comes again (PS_RESEND) must take the way that it took the first time: the server
// recognizes repetitions by signature, and those of a split request have the parts' timestamps.
func (r *Router) Request(workerID, server int32, m *pslite.Meta, keys pslite.Keys, d pslite.Dialect) (passes bool) {
	w := r.workers[workerID]
	w.speaks = d
	keys = keys.Sorted() // as PS-lite wants them, and not every program has them
	id := r.request(server, m)
	r.supersede(w, id)
	if e, ok := w.open[id]; ok {
		return e.split == nil && !r.closed
	}
	r.note(w, server, m, keys, valueBytes(m, keys.Len()))
	r.noteSlice(w, server, m)
	if r.closed || len(w.queues[server]) > 0 || r.displaces(m.AppID, keys) || r.holdsAny(keys) {
		return false
	}
	if r.resend && w.ledger.Seen(id.public()) {
		// It may have been a split one; Take acknowledges it without sending it again.
		if w.ledger.Split() {
			return false
		}
		r.counts.Repeated++ // the server knows best whether it has it
		return true
	}
	r.beginRequest(w, id, entry{})
	r.counts.Plain++
	if r.endGather(w, server, m) {
		r.flushWorker(w)
	}
	return true
}

// beginRequest notes a request as in flight. It is in the ledger before Out returns any message of
// it: after a kill the next router must understand the answers. Without PS_RESEND an unsplit
// request has no entry, since its answer passes as it is.
func (r *Router) beginRequest(w *worker, id request, e entry) {
	if e.split == nil && len(w.open) >= maxOpen {
		r.beginUnnoted(w)
		return
	}
	e.generation = r.generation
	w.open[id] = e
	r.underWay[r.generation]++
	if r.resend || e.split != nil {
		w.ledger.Open(kept(id, e))
	}
}

// note notes how a request uses its keys, and whether keys of the worker's can have different numbers of values. bytes is
// the size of its values, negative where it is not known.
func (r *Router) note(w *worker, server int32, m *pslite.Meta, keys pslite.Keys, bytes int) {
	r.noteUse(server, m, keys, bytes)
	w.lens = w.lens || len(m.DataTypes) > 2 || w.differs(m, keys.Len(), bytes)
	w.asked, w.pushed = true, w.pushed || m.Push
}

// valueBytes returns the size of a request's values as its meta has it, negative where it does not.
func valueBytes(m *pslite.Meta, keys int) int {
	if m.DataSize == 0 {
		return -1
	}
	return int(m.DataSize) - 8*keys
}

// differs reports whether a push without lengths has another number of bytes per key than those
// before.
func (w *worker) differs(m *pslite.Meta, keys, bytes int) bool {
	if !m.Push || keys == 0 || bytes < 0 {
		return false
	}
	width := bytes / keys
	if w.width == 0 {
		w.width = width
	}
	return width != w.width
}

// Take handles a whole data request for which [Router.Request] returned false. Its memory must not
// change until the outputs are carried out; what waits longer is copied. The request is sent, or joins its queue when a key of it is held,
// when an earlier request of the worker to the server waits, or when other slices of its timestamp
// are expected. An error means that the request can never be sent, and nothing of it was.
func (r *Router) Take(workerID, server int32, m *pslite.Message, d pslite.Dialect) error {
	w := r.workers[workerID]
	id := r.request(server, &m.Meta)
	w.speaks = d
	if e, ok := w.open[id]; ok {
		r.counts.Repeated++
		return r.repeat(w, id, e, m)
	}
	if r.resend && w.ledger.Seen(id.public()) { // its acknowledgement was lost
		r.counts.Repeated++
		r.acknowledge(w, id)
		return nil
	}
	if w.waits(id) {
		r.counts.Repeated++
		return nil
	}
	if r.resend && w.inFlight >= MaxSplits { // not acknowledged, so it comes again
		r.counts.Dropped++
		return nil
	}
	q := waiting{id: id, message: *m, dialect: d}
	held := r.closed || len(w.queues[server]) > 0 || r.holdsAny(m.Keys().Sorted())
	if !held && !r.waitsForSlices(w, id, m) {
		return r.dispatch(w, q)
	}
	// From here on it waits, and the caller's memory is reused for the next message.
	q.message = cloneMessage(m)
	w.queues[server] = append(w.queues[server], q)
	if held {
		r.counts.Held++
	}
	if r.endGather(w, server, &m.Meta) {
		r.flushWorker(w)
	}
	// Still waiting. With PS_RESEND the worker would repeat it after a kill of this proxy;
	// otherwise nobody else has it, so the ledger keeps it whole.
	if !r.resend && w.waits(id) {
		w.ledger.Keep(q.kept())
	}
	return nil
}

// cloneMessage returns a copy of a message in memory of its own.
func cloneMessage(m *pslite.Message) pslite.Message {
	c := pslite.Message{Identity: slices.Clone(m.Identity), Meta: m.Meta.Clone(), Data: make([][]byte, len(m.Data))}
	own := make([]byte, 0, total(m.Data))
	for i, f := range m.Data {
		start := len(own)
		own = append(own, f...)
		c.Data[i] = own[start:len(own):len(own)]
	}
	return c
}

// waits reports whether the request is in its queue.
func (w *worker) waits(id request) bool { return w.queued(id) >= 0 }

// queued returns the index of a request in its queue, or -1.
func (w *worker) queued(id request) int {
	return slices.IndexFunc(w.queues[id.server], func(q waiting) bool { return q.id == id })
}

// repeat handles a request that is in flight and came again (PS_RESEND). A split one is repeated to
// those owners that have not acknowledged their part, with the same timestamp, so that they
// recognize it. Its keys are at the owners it was split for: no key moves while a request for it is
// in flight.
func (r *Router) repeat(w *worker, id request, e entry, m *pslite.Message) error {
	switch {
	case r.closed: // it will come once more
		return nil
	case e.split == nil:
		r.pass(w, id, m)
		return nil
	case e.flags&Acked != 0:
		r.acknowledge(w, id)
		return nil
	case e.flags&Joint != 0: // it began before the job was known to repeat anything
		return nil
	}
	owners, _ := r.ownersOf(id.server, &m.Meta, m.Keys())
	if e.flags&Mixed != 0 {
		e.split.order = slices.Clone(owners)
	}
	return r.sendParts(w, slice{e.split, m, owners})
}

// pass sends a message unchanged to the server that the worker chose.
func (r *Router) pass(w *worker, id request, m *pslite.Message) {
	r.send(w, id.server, frames(m, &m.Meta, w.speaks, m.Data))
}

// send adds a message to a server to the outputs, in the worker's name.
func (r *Router) send(w *worker, server int32, frames [][]byte) {
	r.out = append(r.out, Out{Worker: w.id, Server: server, Frames: frames})
}

// deliver adds a message to a worker to the outputs, in a server's name.
func (r *Router) deliver(w *worker, server int32, frames [][]byte) {
	r.out = append(r.out, Out{Worker: w.id, Server: server, ToWorker: true, Frames: frames})
}

// dispatch sends requests to the owners of their keys: a single one, or slices of one timestamp,
// which share joint parts. It checks all of them before it sends the first, so after an error
// nothing has been sent.
func (r *Router) dispatch(w *worker, all ...waiting) error {
	owners, distinct, parted := make([][]int32, len(all)), make([][]int32, len(all)), false
	for i := range all {
		m := &all[i].message
		owners[i], distinct[i] = r.ownersOf(all[i].id.server, &m.Meta, m.Keys())
		parted = anyParted(distinct[i]) // of several requests none is
		if parted {
			var err error
			if distinct[i], err = shares(m.Keys(), owners[i], all[i].id.server, r.table.servers); err != nil {
				return err
			}
		}
		if err := divisible(m); err != nil && (parted || !plain(all[i].id, distinct[i])) {
			return err
		}
	}
	var going []slice
	for i := range all {
		m, id := &all[i].message, all[i].id
		r.note(w, id.server, &m.Meta, m.Keys().Sorted(), len(m.Values().Bytes))
		if !parted && plain(id, distinct[i]) {
			r.beginRequest(w, id, entry{})
			r.counts.Plain++
			r.pass(w, id, m)
			continue
		}
		s := newSplit(id, 0, distinct[i])
		if s.mixed = m.Meta.Pull && len(distinct[i]) > 1 && !m.Keys().Ordered(); s.mixed {
			s.order = slices.Clone(owners[i])
		}
		going = append(going, slice{s, m, owners[i]})
	}
	if len(going) == 0 {
		return nil
	}
	if parted {
		return r.dispatchParted(w, going[0])
	}
	own, joint := w.ledger.Next(), len(going) > 1
	for _, s := range going {
		e := entry{split: s.split}
		if s.split.own, s.split.joint = own, joint; joint {
			e.flags = Joint
			r.counts.Joint++
		}
		if s.split.mixed {
			e.flags |= Mixed
		}
		w.addSplit(s.split)
		r.beginRequest(w, s.split.id, e)
		r.counts.Split++
	}
	return r.sendParts(w, going...)
}

// flush sends what need not wait any longer, of all workers.
func (r *Router) flush() {
	for _, id := range r.Workers() {
		r.flushWorker(r.workers[id])
	}
}

func (r *Router) flushWorker(w *worker) {
	for _, server := range slices.Sorted(maps.Keys(w.queues)) {
		r.flushQueue(w, server)
	}
}

// flushQueue sends the waiting requests of a worker to a server, in order, up to the first that has
// a held key or waits for slices: a later request must not overtake an earlier one. When requests
// that go together fail, they are sent one by one, so that a malformed one does not take the others
// with it.
func (r *Router) flushQueue(w *worker, server int32) {
	for q := w.queues[server]; len(q) > 0 && !r.closed && !r.holdsAny(q[0].message.Keys().Sorted()) && !w.gathered(&q[0]); q = w.queues[server] {
		w.speaks = q[0].dialect
		all := r.takeSlices(w, server)
		if err := r.dispatch(w, all...); err != nil {
			for i := range all {
				// Take has checked what can be wrong with it.
				if err := r.dispatch(w, all[i]); err != nil {
					r.out = append(r.out, Out{Worker: w.id, Server: all[i].id.server, Frames: nil})
				}
			}
		}
		for i := range all {
			// A request leaves the ledger's waiting messages only now that it is open there. A kill
			// between the two finds it in both, and takeKept sends it again.
			if !r.resend {
				w.ledger.Drop(all[i].id.public(), Waits)
			}
		}
	}
}

// Waiting returns the number of waiting requests and the bytes of their data frames.
func (r *Router) Waiting() (requests, bytes int) {
	for _, w := range r.workers {
		for _, q := range w.queues {
			for i := range q {
				requests++
				for _, f := range q[i].message.Data {
					bytes += len(f)
				}
			}
		}
	}
	return requests, bytes
}

// mark adds flags to a request in flight, and ends it when it is complete: answered, and with
// PS_RESEND acknowledged too, in either order.
func (r *Router) mark(w *worker, id request, e entry, flags Flags) {
	if e.flags&flags == flags {
		return
	}
	e.flags |= flags
	done := Answered
	if r.resend {
		done |= Acked
	}
	if e.flags&done != done {
		w.open[id] = e
		if r.resend {
			w.ledger.Mark(id.public(), e.flags)
		}
		return
	}
	r.finish(w, id, e)
}

// finish removes a request that is no longer in flight. That may make holds quiet.
func (r *Router) finish(w *worker, id request, e entry) {
	r.closeRequest(w, id, e)
	r.checkQuiet()
}

// closeRequest is finish without reporting holds as quiet; the caller then calls checkQuiet.
func (r *Router) closeRequest(w *worker, id request, e entry) {
	delete(w.open, id)
	w.removeSplit(e.split)
	if r.resend || e.split != nil {
		w.ledger.Close(id.public())
	}
	r.endGeneration(e.generation)
}

// endGeneration removes a request from its generation's count.
func (r *Router) endGeneration(generation uint32) {
	if r.underWay[generation]--; r.underWay[generation] == 0 {
		delete(r.underWay, generation)
	}
}
