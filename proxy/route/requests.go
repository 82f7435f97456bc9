package route

import (
	"fmt"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// worker is the state of one worker. Each split is that of an entry in open, and
// each timestamp of the router's own is in splits or in ops, not in both.
type worker struct {
	id     int32
	ledger Ledger
	open   map[request]entry   // sent, and not answered
	splits map[int32][]*split  // by their own timestamp
	ops    map[int32]*letter   // likewise
	queues map[int32][]waiting // by server, in the order in which they came
	push   *pslite.Meta        // the first that was seen of each kind
	pull   *pslite.Meta
	apps   map[int32]bool // in whose name there were requests
	// An answer has come: where the job uses PS_RESEND, an ACK would have come before.
	answered bool
	slicings map[sequence]*slicing
	gathers  map[gathering]*gather
	// lens: keys may have different numbers of values. width is how many bytes those
	// of its pushes had, 0 where none has said it.
	lens   bool
	width  int
	speaks pslite.Dialect
}

// request names a worker's request among its others. With PS_RESEND the
// customer is 0: signatures do not tell customers apart, nor does PS-lite then.
type request struct{ server, app, customer, timestamp int32 }

// entry is a request under way.
type entry struct {
	generation uint32
	flags      Flags
	split      *split // nil: it passed as it was
	kept       bool   // by the ledger, for a router before this one
}

// waiting is a request that waits.
type waiting struct {
	id      request
	message pslite.Message // its memory is the router's
	dialect pslite.Dialect
}

func (r *Router) request(server int32, m *pslite.Meta) request {
	id := request{server, m.AppID, m.CustomerID, m.Timestamp}
	if r.resend {
		id.customer = 0
	}
	return id
}

// Request is shown the beginning of a data request, meta and keys, of a worker
// to a server. Where it returns true the message passes as it is, and counts as
// under way. Otherwise the whole message is to be given to [Router.Take]. What
// the router says itself in the worker's name is in its dialect, from then on.
func (r *Router) Request(workerID, server int32, m *pslite.Meta, keys pslite.Keys, d pslite.Dialect) (passes bool) {
	w := r.workers[workerID]
	w.speaks = d
	id := r.request(server, m)
	r.supersede(w, id)
	if e, ok := w.open[id]; ok {
		return e.split == nil && !r.closed
	}
	r.noteSlice(w, server, m)
	if r.closed || len(w.queues[server]) > 0 || r.touches(keys) || r.holdsAny(keys) {
		return false
	}
	if r.resend && w.ledger.Seen(id.public()) {
		if w.ledger.Split() {
			return false
		}
		r.counts.Repeated++ // the server knows best whether it has it
		return true
	}
	w.noteTemplate(m, keys.Len())
	r.beginRequest(w, id, entry{})
	r.counts.Plain++
	if r.endGather(w, server, m) {
		r.flushWorker(w)
	}
	return true
}

// beginRequest notes a request that is under way from now on.
func (r *Router) beginRequest(w *worker, id request, e entry) {
	e.generation = r.generation
	w.open[id] = e
	r.underWay[r.generation]++
	if r.resend || e.split != nil {
		w.ledger.Open(kept(id, e))
	}
}

// supersede ends a request that the ledger has kept, of a job that repeats
// nothing, when the worker makes one of that name: it has been started again, and
// nobody waits for the old one.
func (r *Router) supersede(w *worker, id request) {
	if r.resend {
		return
	}
	if e, ok := w.open[id]; ok && e.kept {
		r.finish(w, id, e)
	}
	if i := w.queued(id); i >= 0 {
		w.queues[id.server] = slices.Delete(w.queues[id.server], i, i+1)
		w.ledger.Drop(id.public(), Waits)
	}
}

// noteTemplate keeps the first push and pull, from which the router's own are made, and
// whether keys have different numbers of values.
func (w *worker) noteTemplate(m *pslite.Meta, keys int) {
	w.lens = w.lens || len(m.DataTypes) > 2 || w.differs(m, keys)
	if w.apps[m.AppID] && (w.push != nil || !m.Push) && (w.pull != nil || !m.Pull) {
		return
	}
	w.apps[m.AppID] = true
	c := m.Clone()
	if m.Push && w.push == nil {
		w.push = &c
	}
	if m.Pull && w.pull == nil {
		w.pull = &c
	}
}

// differs reports whether the values of a push without lengths have another size
// than those of the pushes before.
func (w *worker) differs(m *pslite.Meta, keys int) bool {
	if !m.Push || keys == 0 || m.DataSize == 0 {
		return false
	}
	width := (int(m.DataSize) - 8*keys) / keys
	if w.width == 0 {
		w.width = width
	}
	return width != w.width
}

// Take takes a whole data request for which [Router.Request] returned false.
// The memory of the message must stay as it is.
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
	q := waiting{id: id, message: *m, dialect: d}
	held := r.closed || len(w.queues[server]) > 0 || r.holdsAny(m.Keys())
	if !held && !r.waitsForSlices(w, id, m) {
		return r.dispatch(w, q)
	}
	q.message.Meta = m.Meta.Clone()
	w.queues[server] = append(w.queues[server], q)
	if held {
		r.counts.Held++
	}
	if r.endGather(w, server, &m.Meta) {
		r.flushWorker(w)
	}
	if !r.resend && w.waits(id) {
		w.ledger.Keep(q.kept())
	}
	return nil
}

// waits reports whether the request is in its queue. Without PS_RESEND none
// comes twice.
func (w *worker) waits(id request) bool { return w.queued(id) >= 0 }

func (w *worker) queued(id request) int {
	return slices.IndexFunc(w.queues[id.server], func(q waiting) bool { return q.id == id })
}

// repeat takes a request that is under way and came again.
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
	return r.sendParts(w, slice{e.split, m, r.table.AppendOwners(nil, m.Keys())})
}

// pass sends a message on as it is.
func (r *Router) pass(w *worker, id request, m *pslite.Message) {
	r.send(w, id.server, frames(m, &m.Meta, w.speaks, m.Data))
}

func (r *Router) send(w *worker, server int32, frames [][]byte) {
	r.out = append(r.out, Out{Worker: w.id, Server: server, Frames: frames})
}

func (r *Router) deliver(w *worker, server int32, frames [][]byte) {
	r.out = append(r.out, Out{Worker: w.id, Server: server, ToWorker: true, Frames: frames})
}

// dispatch sends requests that go together to the owners of their keys; after an
// error none has been sent.
func (r *Router) dispatch(w *worker, all ...waiting) error {
	owners, distinct, parted := make([][]int32, len(all)), make([][]int32, len(all)), false
	for i := range all {
		m := &all[i].message
		owners[i] = r.table.AppendOwners(nil, m.Keys())
		distinct[i] = ranks(owners[i])
		parted = anyParted(distinct[i]) // of several requests none is
		if parted {
			var err error
			if distinct[i], err = shares(m.Keys(), owners[i], all[i].id.server, r.table.servers); err != nil {
				return err
			}
		}
		if len(distinct[i]) > MaxOwners {
			return fmt.Errorf("route: a request whose keys belong to %d servers, at most %d are possible", len(distinct[i]), MaxOwners)
		}
		if err := divisible(m); err != nil && (parted || !plain(all[i].id, distinct[i])) {
			return err
		}
	}
	var going []slice
	for i := range all {
		m, id := &all[i].message, all[i].id
		w.noteTemplate(&m.Meta, m.Keys().Len())
		if !parted && plain(id, distinct[i]) {
			r.beginRequest(w, id, entry{})
			r.counts.Plain++
			r.pass(w, id, m)
			continue
		}
		going = append(going, slice{newSplit(id, 0, distinct[i]), m, owners[i]})
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
		w.addSplit(s.split)
		r.beginRequest(w, s.split.id, e)
		r.counts.Split++
	}
	return r.sendParts(w, going...)
}

// flush dispatches what need not wait any more, in order.
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

// flushQueue sends the waiting requests of a worker for a server, in their order, as
// far as no key of the next one is held: a later request must not overtake an earlier
// one. Requests that fail together are sent one by one, so that one which is malformed
// does not take the others with it.
func (r *Router) flushQueue(w *worker, server int32) {
	for q := w.queues[server]; len(q) > 0 && !r.closed && !r.holdsAny(q[0].message.Keys()) && !w.gathered(&q[0]); q = w.queues[server] {
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
			if !r.resend {
				w.ledger.Drop(all[i].id.public(), Waits)
			}
		}
	}
}

// Waiting returns how many requests wait, and the bytes of their values.
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

// mark notes what has happened to a request, and ends it where that was all.
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

// finish takes out a request that is not under way any more.
func (r *Router) finish(w *worker, id request, e entry) {
	delete(w.open, id)
	w.removeSplit(e.split)
	if r.resend || e.split != nil {
		w.ledger.Close(id.public())
	}
	r.endGeneration(e.generation)
	r.checkQuiet()
}

// endGeneration takes a request out of the count of its generation.
func (r *Router) endGeneration(generation uint32) {
	if r.underWay[generation]--; r.underWay[generation] == 0 {
		delete(r.underWay, generation)
	}
}

// UnderWay returns the requests that are under way, for people.
func (r *Router) UnderWay() (all []string) {
	for _, id := range r.Workers() {
		for at, e := range r.workers[id].open {
			all = append(all, fmt.Sprintf("worker %d to server %d, app %d customer %d timestamp %d: flags %d, split %v", id, at.server, at.app, at.customer, at.timestamp, e.flags, e.split != nil))
		}
	}
	return all
}
