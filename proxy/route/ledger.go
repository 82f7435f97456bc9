package route

import (
	"math"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Ledger persists what the next router must know after this one was killed: open requests of one
// worker, and how they were split. Each call takes effect before it returns, and survives the
// process, not the machine. It is called under the router's lock, and must not block for long.
//
// With PS_RESEND it keeps every open request, and which requests were seen, since any may be
// repeated. Without, nothing is ever repeated. Then it keeps the split requests, whose answers may
// still come, and whole messages that nobody else has any more: waiting requests, and answers to
// parts.
type Ledger interface {
	// Next returns a timestamp for the router's own messages. It counts Own of them from FirstOwn
	// on, over the lives of all routers, and then starts over.
	Next() int32
	// Resend and UseResend read and set whether the job uses PS_RESEND.
	Resend() bool
	UseResend()
	// Open adds a request in flight. It also counts as seen.
	Open(Kept)
	// Mark replaces the flags of a request in flight, In the set of places among its owners, 32 at
	// most, whose answers without values have come, and Close removes the request.
	Mark(ID, Flags)
	In(ID, uint32)
	Close(ID)
	// Seen reports whether a request was ever opened, as far as that is still known. Split reports
	// whether any request that was split was ever opened.
	Seen(ID) bool
	Split() bool
	// Load returns the requests in flight.
	Load() []Kept
	// Keep adds a message, and Drop removes it; Close drops the answers to the request's parts.
	// Messages returns them, the oldest first. Nothing is kept of a job with PS_RESEND.
	Keep(Message)
	Drop(id ID, place int32)
	Messages() []Message
}

// Message is a message that only the router has: a waiting request, or the answer of one owner to
// its part.
type Message struct {
	ID      ID
	Place   int32 // Waits, or the owner's place
	Dialect pslite.Dialect
	Frames  [][]byte
}

// Waits is the place of a waiting request.
const Waits int32 = -1

// ID identifies a request of a worker: the rank of the server that it was sent to, its app, its
// customer (0 with PS_RESEND) and its timestamp.
type ID struct{ Server, App, Customer, Timestamp int32 }

// Flags record what has happened to a request.
type Flags uint8

// The flags.
const (
	Acked    Flags = 1 << iota // acknowledged to the worker; of one that passed as it was, by the server
	Answered                   // the answer was delivered; with PS_RESEND the worker has acknowledged a merged one
	Joint                      // its parts contain keys of other requests of its timestamp
	Parted                     // some of its keys are in parts; Owners are shares, see parts.go
	Mixed                      // it pulls keys that do not ascend, in an order that the ledger does not have
)

// MaxOwners is the largest number of owners of a request that a ledger can have to keep: there are no more servers, and
// no more shares.
const MaxOwners = math.MaxUint16

// marked is the number of owners up to which a ledger only marks places whose answers, without values, have come. Such
// answers to requests with more owners are kept as messages.
const marked = 32

// Kept is a request in flight as a ledger has it. Own is the timestamp of its parts, which went to
// Owners; 0 where it passed as it was.
type Kept struct {
	ID     ID
	Flags  Flags
	Own    int32
	Owners []int32
	In     uint32 // of at most 32 Owners, the places whose answers, without values, have come
}

// id is the inverse of public.
func (k Kept) id() request {
	return request{k.ID.Server, k.ID.App, k.ID.Customer, k.ID.Timestamp}
}

func (id request) public() ID { return ID{id.server, id.app, id.customer, id.timestamp} }

// kept returns a request in flight as the ledger stores it.
func kept(id request, e entry) Kept {
	k := Kept{ID: id.public(), Flags: e.flags}
	if e.split != nil {
		k.Own, k.Owners = e.split.own, e.split.owners
	}
	return k
}

// acknowledge sends the worker an ACK of a request, in the name of the server that it asked.
func (r *Router) acknowledge(w *worker, id request) {
	signed := pslite.Meta{AppID: id.app, Timestamp: id.timestamp, Request: true}
	r.deliver(w, id.server, [][]byte{ack(w.speaks, pslite.Signature(&signed, w.id, pslite.ServerID(int(id.server))))})
}

// ack returns the meta frame of an ACK of the message with that signature.
func ack(d pslite.Dialect, signature uint64) []byte {
	var m pslite.Meta
	m.Reset()
	m.Control.Cmd, m.Control.MsgSig = pslite.Ack, signature
	return m.Append(nil, d)
}

// signed takes a signature apart (see [pslite.Signature]); its sender and receiver are known.
func signed(signature uint64) (app, timestamp int32, isRequest bool) {
	low := uint32(signature)
	return int32(int16(signature >> 48)), int32(low >> 1), low&1 != 0
}

// ServerAck is shown an ACK of a server for a worker, and reports whether it passes. An ACK of a
// part does not: the worker knows nothing of parts.
func (r *Router) ServerAck(server, workerID int32, signature uint64) (passes bool) {
	r.UseResend()
	w := r.workers[workerID]
	app, timestamp, isRequest := signed(signature)
	if !isRequest {
		return true
	}
	if timestamp >= FirstOwn {
		r.ackedPart(w, server, timestamp)
		return false
	}
	if r.ackedRerouted(w, server, app, timestamp) {
		return false
	}
	id := request{server: server, app: app, timestamp: timestamp}
	if e, ok := w.open[id]; ok && e.split == nil {
		r.mark(w, id, e, Acked)
	}
	return true
}

// ackedPart notes that a server has acknowledged a part, or a message of an op. The last part's ACK
// makes the one for the worker.
func (r *Router) ackedPart(w *worker, server, own int32) {
	if l := w.ops[own]; l != nil {
		l.acked = true
		return
	}
	for _, s := range slices.Clone(w.splits[own]) {
		s.acked.addNumber(s.place(own, server))
		r.ackedSplit(w, s)
	}
}

// ackedSplit acknowledges a split request to the worker once all of its parts are acknowledged.
func (r *Router) ackedSplit(w *worker, s *split) {
	if e, ok := w.open[s.id]; ok && s.acked.count() == len(s.owners) && e.flags&Acked == 0 {
		r.mark(w, s.id, e, Acked)
		r.acknowledge(w, s.id)
	}
}

// WorkerAck is shown an ACK of a worker for a server, and reports whether it passes. The ACK of a
// merged answer is replaced by one for each part's answer; until then the servers repeat theirs, so
// a kill of this proxy loses nothing.
func (r *Router) WorkerAck(workerID, server int32, signature uint64) (passes bool) {
	r.UseResend()
	w := r.workers[workerID]
	app, timestamp, isRequest := signed(signature)
	if isRequest {
		return true
	}
	id := request{server: server, app: app, timestamp: timestamp}
	e, ok := w.open[id]
	if !ok || e.split == nil {
		return true
	}
	r.mark(w, id, e, Answered)
	for i := range e.split.owners {
		own, owner := e.split.at(i)
		r.acceptAnswer(w, owner, app, own)
	}
	return false
}

// acceptAnswer acknowledges a server's answer to a part, in the worker's name.
func (r *Router) acceptAnswer(w *worker, server, app, own int32) {
	answer := pslite.Meta{AppID: app, Timestamp: own}
	r.send(w, server, [][]byte{ack(w.speaks, pslite.Signature(&answer, pslite.ServerID(int(server)), w.id))})
}
