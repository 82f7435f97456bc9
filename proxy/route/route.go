// Package route decides where the requests of a host's workers go while keys of
// their job are displaced. It is a state machine without sockets, clocks and
// goroutines: messages go in, messages come out.
//
// A [Router] stands between the workers of one job on one host and all servers.
// A request for keys that are at home passes untouched, and is only noted. One
// with displaced keys is split by the [Table]: each owner gets its part, with a
// timestamp of the router's own, and the answers are held until all are in, put
// together in the order of the keys and delivered as the answer of the server
// that was asked. A key may also be in parts on several servers (parts.go): then a
// pushed value is cut, and a pulled one put together. With PS_RESEND a request is acknowledged to the worker when
// all parts are, and the parts' answers to the servers when the worker has
// acknowledged the whole.
//
// While keys move ([Router.Hold]) requests for them wait here, and requests in
// flight are waited for; [Router.Release] names their new owner. Since no request
// for a moving key is on its way anywhere, a move needs no forwarding, and nothing
// can be applied twice or read too early.
//
// The proxy's shell calls it, with a lock around it, and carries out what
// [Router.Out] returns. Package migrate moves keys with it.
package route

import (
	"maps"
	"slices"
)

// FirstOwn is the first timestamp of the router's own; PS-lite's, which count
// up from 0, stay below. All stay below 2^30, above which signatures collide.
const FirstOwn int32 = 1 << 29

// FirstExact is the first timestamp of messages whose values must arrive to the
// last bit, whatever codecs there are: those of moves, and of requests for keys in
// parts. Parts of other requests have timestamps below.
const FirstExact int32 = FirstOwn + 1<<28

// LastOwn is the last one of all.
const LastOwn int32 = 1<<30 - 1

// Own is how many timestamps [Ledger.Next] gives before it starts over.
const Own = FirstExact - FirstOwn - 1<<24

// Batch names keys that move together: the address of the proxy that moves
// them and a number of its own.
type Batch struct {
	Mover  string
	Number uint64
}

// Out is something to be done. One of Frames, Quiet and Op is set.
type Out struct {
	// Frames are a message for server Server as from worker Worker or, with
	// ToWorker, the reverse. They are the receiver's.
	Worker, Server int32 // node id, rank
	ToWorker       bool
	Frames         [][]byte
	// Quiet: no request for the batch's keys is under way from here.
	Quiet *Batch
	// Op is complete.
	Op *Op
}

// Router is the state of one job on one host. It has no lock, clock or goroutine: one
// caller at a time shows it what passes, and does what Out says.
//
// Invariants, between two calls:
//   - underWay counts the workers' open requests by generation, and has no zeros.
//   - a hold becomes quiet when no request of its generation, or of one before, is open.
//   - a request waits in a worker's queue of a server behind all that came before it for
//     that server: their order stays.
//   - while closed no new request passes: all wait.
type Router struct {
	table    *Table
	verdicts verdicts
	holds    map[Batch]*hold
	workers  map[int32]*worker
	resend   bool // the job uses PS_RESEND
	closed   bool // nothing may pass: the displaced keys are not known yet
	past     bool // some messages do not come by here
	gather   bool // slices of a timestamp wait for each other
	keeper   Keeper
	pace     func(workerID, own int32) bool // nil: unacknowledged parts are sent again each time
	follower Follower
	// Requests are counted by the generation in which they began; a hold begins
	// a new one, and waits for those before.
	generation uint32
	underWay   map[uint32]int
	out        []Out
	counts     Counts
}

// Counts is what a router has done.
type Counts struct {
	Plain    uint64 // requests that passed as they were
	Split    uint64 // requests that had a part for another server
	Parts    uint64 // of those
	Held     uint64 // requests that waited for a move
	Repeated uint64 // requests that were recognised as repeated
	Joint    uint64 // of Split, those that were gathered
	// Ungathered are timestamps whose slices did not all come in time.
	Ungathered uint64
	Stray      uint64 // answers to our own requests that nobody waits for
}

// New returns a router whose table says where keys are. Nothing passes until
// [Router.Open] is called.
func New(t *Table) *Router {
	return &Router{table: t, holds: map[Batch]*hold{}, workers: map[int32]*worker{}, closed: true, underWay: map[uint32]int{}}
}

// Table returns the present table.
func (r *Router) Table() *Table { return r.table }

// Counts returns what was done so far.
func (r *Router) Counts() Counts { return r.counts }

// Resend reports whether the job is known to use PS_RESEND.
func (r *Router) Resend() bool { return r.resend }

// Open replaces the table and lets requests pass.
func (r *Router) Open(t *Table) {
	r.table, r.verdicts, r.closed = t, verdicts{}, false
	r.follow(nil)
	r.flush()
}

// Ready reports whether requests pass.
func (r *Router) Ready() bool { return !r.closed }

// Out returns the outputs so far, in order, and forgets them.
func (r *Router) Out() []Out {
	out := r.out
	r.out = nil
	return out
}

// AddWorker makes a worker known, with what the ledger has kept of a router
// before this one. It must be called before anything of the worker is shown.
func (r *Router) AddWorker(id int32, l Ledger) {
	if r.workers[id] != nil {
		return
	}
	w := &worker{
		id: id, ledger: l, open: map[request]entry{}, splits: map[int32][]*split{}, ops: map[int32]*letter{},
		queues: map[int32][]waiting{}, apps: map[int32]bool{}, slicings: map[sequence]*slicing{}, gathers: map[gathering]*gather{},
	}
	r.workers[id] = w
	if l.Resend() {
		r.UseResend()
	}
	for _, o := range l.Load() {
		e := entry{generation: r.generation - longAgo, flags: o.Flags, kept: true}
		if o.Own != 0 {
			e.split = newSplit(o.id(), o.Own, o.Owners)
			e.split.joint, e.split.parted = o.Flags&Joint != 0, o.Flags&Parted != 0
			if !r.resend {
				e.split.in, e.split.unseen = places(o.In), places(o.In)
			}
			w.addSplit(e.split)
		}
		w.open[o.id()] = e
		r.underWay[e.generation]++
	}
	if !r.resend {
		r.takeKept(w)
	}
}

// longAgo is how many generations ago requests count as begun that a ledger has
// kept: every hold waits for them.
const longAgo = 1 << 20

// Workers returns the ids of the workers, ascending.
func (r *Router) Workers() []int32 { return slices.Sorted(maps.Keys(r.workers)) }

// UseResend records that the job retransmits unacknowledged messages (PS_RESEND).
// An ACK anywhere in the job shows it.
func (r *Router) UseResend() {
	if r.resend {
		return
	}
	r.resend = true
	for _, w := range r.workers {
		w.ledger.UseResend()
		open := make(map[request]entry, len(w.open))
		for id, e := range w.open {
			if e.split != nil {
				w.ledger.Close(id.public()) // of the name that it has had
			}
			id.customer = 0
			open[id] = e
			if e.split != nil {
				e.split.id = id
			}
			w.ledger.Open(kept(id, e))
		}
		w.open = open
		for _, q := range w.queues { // what the ledger has kept of them it has dropped
			for i := range q {
				q[i].id.customer = 0
			}
		}
	}
}
