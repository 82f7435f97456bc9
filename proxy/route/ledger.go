package route

import (
	"slices"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// Ledger keeps what a router must still know after it was killed: the requests
// of one worker that may be repeated, and how they were split. It is written at
// once. In jobs that do not use PS_RESEND nothing is ever repeated. Of those
// requests are kept that were split, whose answers may still come, and whole
// messages that nobody else has any more: requests that wait, and answers to parts.
type Ledger interface {
	// Next returns a timestamp that was never returned before: Own of them from
	// FirstOwn on, and then from FirstOwn again.
	Next() int32
	// Resend and UseResend keep that the job uses PS_RESEND.
	Resend() bool
	UseResend()
	// Open keeps a request as under way and seen.
	Open(Kept)
	// Mark replaces the flags of one under way, In says of which places among its
	// owners an answer without values has come, Close ends it.
	Mark(ID, Flags)
	In(ID, uint32)
	Close(ID)
	// Seen reports whether a request was ever opened, as far as that is still
	// known, and Split whether any was opened that was split.
	Seen(ID) bool
	Split() bool
	// Load returns those under way.
	Load() []Kept
	// Keep keeps a message as it is, and Drop ends that; Close drops the answers to
	// a request. Messages returns them, the oldest first. Nothing is kept of a job
	// that uses PS_RESEND.
	Keep(Message)
	Drop(id ID, place int32)
	Messages() []Message
}

// Message is a whole message that only the router has: a request that waits or, by
// its place among the owners, the answer of one of them to its part.
type Message struct {
	ID      ID
	Place   int32 // Waits, or a place
	Dialect pslite.Dialect
	Frames  [][]byte
}

// Waits is the place of a request that waits.
const Waits int32 = -1

// ID names a request of a worker: the rank of the server that it asks, its app,
// its customer (0 with PS_RESEND) and its timestamp.
type ID struct{ Server, App, Customer, Timestamp int32 }

// Flags say what has happened to a request.
type Flags uint8

// The flags.
const (
	Acked    Flags = 1 << iota // acknowledged to the worker
	Answered                   // the answer was passed on; that of a split one was acknowledged
	Joint                      // its parts were parts of other requests with its timestamp, too
	Parted                     // some of its keys are in parts: Owners are shares, see sendShares
)

// MaxOwners is among how many servers one request's keys can be divided.
const MaxOwners = 24

// Kept is a request under way. Own is 0 where it passed as it was; otherwise
// the timestamp of its parts, which went to Owners.
type Kept struct {
	ID     ID
	Flags  Flags
	Own    int32
	Owners []int32
	In     uint32 // places among Owners whose answers have come
}

func (k Kept) id() request {
	return request{k.ID.Server, k.ID.App, k.ID.Customer, k.ID.Timestamp}
}

func (id request) public() ID { return ID{id.server, id.app, id.customer, id.timestamp} }

func kept(id request, e entry) Kept {
	k := Kept{ID: id.public(), Flags: e.flags}
	if e.split != nil {
		k.Own, k.Owners = e.split.own, e.split.owners
	}
	return k
}

// acknowledge tells the worker, in the name of the server that it asked, that a
// request has arrived.
func (r *Router) acknowledge(w *worker, id request) {
	signed := pslite.Meta{AppID: id.app, Timestamp: id.timestamp, Request: true}
	r.deliver(w, id.server, [][]byte{ack(w.speaks, pslite.Signature(&signed, w.id, pslite.ServerID(int(id.server))))})
}

// ack returns an ACK's meta frame.
func ack(d pslite.Dialect, signature uint64) []byte {
	var m pslite.Meta
	m.Reset()
	m.Control.Cmd, m.Control.MsgSig = pslite.Ack, signature
	return m.Append(nil, d)
}

// signed takes a signature apart.
func signed(signature uint64) (app, timestamp int32, isRequest bool) {
	low := uint32(signature)
	return int32(int16(signature >> 48)), int32(low >> 1), low&1 != 0
}

// ServerAck is shown an ACK of a server for a worker, and reports whether it
// passes.
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
	id := request{server: server, app: app, timestamp: timestamp}
	if e, ok := w.open[id]; ok && e.split == nil {
		r.mark(w, id, e, Acked)
	}
	return true
}

// ackedPart notes that a server has a part, or a request of the router's own.
func (r *Router) ackedPart(w *worker, server, own int32) {
	if l := w.ops[own]; l != nil {
		l.acked = true
		return
	}
	for _, s := range slices.Clone(w.splits[own]) {
		s.acked.addPlace(s.place(own, server))
		if e := w.open[s.id]; s.acked.full(len(s.owners)) && e.flags&Acked == 0 {
			r.mark(w, s.id, e, Acked)
			r.acknowledge(w, s.id)
		}
	}
}

// WorkerAck is shown an ACK of a worker for a server, and reports whether it
// passes.
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

// acceptAnswer acknowledges a server's answer to a part in the worker's name.
func (r *Router) acceptAnswer(w *worker, server, app, own int32) {
	answer := pslite.Meta{AppID: app, Timestamp: own}
	r.send(w, server, [][]byte{ack(w.speaks, pslite.Signature(&answer, pslite.ServerID(int(server)), w.id))})
}
