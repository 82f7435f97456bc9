// Package route decides where the requests of a host's workers go while keys of their job are
// displaced. It is a state machine without sockets, clocks or goroutines: messages go in, messages
// come out.
//
// A [Router] stands between the workers of one job on one host and all servers. A request for keys
// that are at home passes untouched, and is only noted. One with displaced keys is split by the
// [Table]: each owner gets its part, under a timestamp of the router's own. The answers are kept
// until all have come, merged in the order of the keys, and delivered as the answer of the server
// that the worker asked. A key may also be in parts on several servers (parts.go): then a pushed
// value is cut, and a pulled one put together.
//
// With PS_RESEND a request is acknowledged to the worker when all of its parts are, and the parts'
// answers are acknowledged to the servers when the worker has acknowledged the whole. The router
// thus never acknowledges what it could still lose.
//
// While keys move ([Router.Hold]) new requests for them wait here, and those in flight are waited
// for; [Router.Release] names the new owner. Since no request for a moving key is in flight
// anywhere, a move needs no forwarding, and nothing can be applied twice or read too early.
//
// What a router must know after a kill is in a [Ledger], one for each worker, and the holds in a
// [Keeper]; in an orderly handover it is [Unfinished].
//
// The files: requests.go has the way of a request, split.go that of a split one and its answers,
// gather.go joins the slices of one request, parts.go divides large values, hold.go has moves,
// own.go the router's own pulls and pushes, ledger.go acknowledgements and what outlives a kill,
// abandon.go the end of requests that are not answered.
// table.go is the table, on the hash table of singles.go, segment.go and filter.go.
//
// Package proxy/jobs calls a Router, with a lock around it, and carries out what [Router.Out]
// returns.
package route

import (
	"maps"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// FirstOwn is the first timestamp of the router's own. The job's, which count up from 0, stay
// below. All stay below 2^30: PS-lite computes timestamp << 1 in 32 bits for a message's signature;
// from 2^30 on that is negative, and its sign overwrites the signature's other fields.
const FirstOwn int32 = 1 << 29

// FirstExact is the first timestamp of messages whose values must arrive to the last bit, whatever
// the codecs: those of moves, and of requests for keys in parts. Codecs tell by it ([FirstOwn] up
// to here are parts of ordinary requests, which they may change).
const FirstExact int32 = FirstOwn + 1<<28

// LastOwn is the last of the router's own timestamps.
const LastOwn int32 = 1<<30 - 1

// Own is the number of timestamps that [Ledger.Next] returns before it starts over, with a margin
// below FirstExact.
const Own = FirstExact - FirstOwn - 1<<24

// Batch identifies a set of keys that move together: the address of the proxy that moves them, and
// a number that is unique at that proxy.
type Batch struct {
	Mover  string
	Number uint64
}

// Out is an action for the caller: one of Frames, Quiet and Op is set. Without any of them, a
// request of Worker to Server that waited turned out to be impossible to split, and the job cannot
// go on.
type Out struct {
	// Frames are a message for server Server from worker Worker or, with ToWorker, the reverse. The
	// caller owns them.
	Worker, Server int32 // node id, rank
	ToWorker       bool
	Frames         [][]byte
	// Quiet names a batch for whose keys no request of this host is in flight.
	Quiet *Batch
	// Op is an op that is complete.
	Op *Op
}

// Router is the state of one job on one host. It has no lock, clock or goroutine: the caller
// serializes all calls, and carries out what Out returns.
//
// Invariants, between two calls:
//   - underWay counts the workers' open requests by generation, and has no zero entries.
//   - a hold becomes quiet when no request of its generation or an earlier one is open.
//   - a request waits in its worker's queue of a server behind all that came before it for that
//     server: order is kept per (worker, server), as on the worker's own connection.
//   - while closed, no new request passes; all wait.
type Router struct {
	table       *Table
	placed      *Table // at first: where the keys of all other apps than app are
	app         int32  // whose keys have moved, pslite.Empty while none have: see MoveApp
	uses        []*use // at most mostUses
	manyUses    bool   // there were more
	usesVersion int
	verdicts    verdicts
	owners      ownerLists
	holds       map[Batch]*hold
	workers     map[int32]*worker
	resend      bool // the job uses PS_RESEND
	closed      bool // nothing may pass: the displaced keys are not known yet
	past        bool // some messages do not come by here
	gather      bool // slices of a timestamp wait for each other
	keeper      Keeper
	pace        func(workerID, own int32) bool // nil: Repeat sends all unacknowledged messages of ops each time
	follower    Follower
	// Requests are counted by the generation in which they began. A hold starts a new generation
	// and waits for the requests of its own and earlier ones, so later requests for other keys do
	// not delay it. The counter wraps; generations are compared by their difference.
	generation uint32
	underWay   map[uint32]int
	out        []Out
	counts     Counts
}

// Counts are a router's totals since New.
type Counts struct {
	Plain    uint64 // requests that passed as they were
	Split    uint64 // requests that had a part for another server
	Parts    uint64 // of those
	Held     uint64 // requests that waited for a move
	Repeated uint64 // requests that were recognised as repeated
	Joint    uint64 // of Split, those that were gathered
	// Ungathered counts timestamps whose slices did not all come in time.
	Ungathered uint64
	Unnoted    uint64 // of Plain, those that were not noted as in flight, see maxOpen
	Dropped    uint64 // requests beyond MaxSplits that were dropped, and come again
	Rerouted   uint64 // requests that went whole to another server
	// Requests that were abandoned, by the reason why nobody waits for their answers.
	Ended     uint64 // the worker has ended its connection to a server that had yet to answer
	Restarted uint64 // the worker was restarted
}

// New returns a router for the job whose displaced keys are in t, which becomes the router's. It is
// closed: requests wait until [Router.Open] is called, since t may be incomplete.
func New(t *Table) *Router {
	return &Router{table: t, placed: t, app: pslite.Empty, holds: map[Batch]*hold{}, workers: map[int32]*worker{}, closed: true, underWay: map[uint32]int{}}
}

// Table returns the current table. It is the router's: the caller must not change it.
func (r *Router) Table() *Table { return r.table }

// Counts returns the totals so far.
func (r *Router) Counts() Counts { return r.counts }

// Resend reports whether the job is known to use PS_RESEND.
func (r *Router) Resend() bool { return r.resend }

// Open replaces the table, which becomes the router's, and sends what has waited.
func (r *Router) Open(t *Table) {
	r.table, r.verdicts, r.owners, r.closed = t, verdicts{}, ownerLists{}, false
	r.follow(nil)
	r.flush()
}

// Ready reports whether requests pass, that is, whether the router is open.
func (r *Router) Ready() bool { return !r.closed }

// Out returns the outputs so far, in order, and forgets them.
func (r *Router) Out() []Out {
	out := r.out
	r.out = nil
	return out
}

// AddWorker introduces a worker, with the ledger that a router before this one has left (empty for
// a new worker). It must be called before any message of the worker is shown; a worker that is
// known already is left alone, and one that was removed is back.
//
// Requests that the ledger has as open are open again: their parts are with the servers, and the
// answers will come to this router.
func (r *Router) AddWorker(id int32, l Ledger) {
	if w := r.workers[id]; w != nil {
		w.gone = false
		return
	}
	w := &worker{
		id: id, ledger: l, open: map[request]entry{}, splits: map[int32][]*split{}, ops: map[int32]*letter{},
		queues: map[int32][]waiting{}, slicings: map[sequence]*slicing{}, gathers: map[gathering]*gather{},
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
			e.split.mixed = o.Flags&Mixed != 0
			if !r.resend {
				// Answers with values are in the ledger's messages, and takeKept adds them. Of
				// those without values only the fact is kept, and all are equal: one that is still
				// to come gives the frames.
				e.split.in, e.split.unseen = set{low: uint64(o.In)}, set{low: uint64(o.In)}
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

// longAgo is by how many generations requests from a ledger predate the current one, so that every
// hold, in whichever generation, waits for them.
const longAgo = 1 << 20

// Workers returns the node ids of the known workers that have not been removed, ascending.
func (r *Router) Workers() []int32 {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r.workers)), func(id int32) bool { return r.workers[id].gone })
}

// UseResend records that the job retransmits unacknowledged messages (PS_RESEND); any ACK of the
// job shows that. There is no way back: the setting is one of the whole job.
//
// Requests opened so far are renamed, because an ACK's signature has no customer, and are put into
// the ledger, all of them: from now on any may come again.
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
			// Two customers used the same timestamp. PS-lite itself takes one of the two for a
			// retransmission of the other, so that no more than one is waited for.
			if _, there := open[id]; there {
				w.removeSplit(e.split)
				r.endGeneration(e.generation)
				continue
			}
			open[id] = e
			if e.split != nil {
				e.split.id = id
			}
			if id != unnoted {
				w.ledger.Open(kept(id, e))
			}
		}
		w.open = open
		for _, q := range w.queues { // what the ledger has kept of them it has dropped
			for i := range q {
				q[i].id.customer = 0
			}
		}
	}
}
