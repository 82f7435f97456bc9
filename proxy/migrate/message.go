package migrate

import (
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy/route"
)

// Kind is the kind of a message between sites.
type Kind uint8

// The kinds.
const (
	Join    Kind = iota + 1 // the sender knows nothing: say what you hold
	Holding                 // answer to Join: all that the sender holds; with a Batch: is it over?
	Hold                    // requests for Keys must wait
	Quiet                   // no request for Batch, which has Keys, is in flight at the sender
	Release                 // Batch is over: its keys belong to Owner
)

// Message is a message between two sites. It is encoded by proxy/jobs; see the letters there.
type Message struct {
	Kind  Kind
	Batch route.Batch
	Keys  []plan.Keys // of Hold, Quiet and Holding with a Batch
	// Owner depends on the kind. Release: a rank, an owner of keys in parts, or route.Unchanged.
	// Holding: blind, or 0. Hold and Quiet of a batch whose keys go into parts: the owner that they
	// will have, or waits. Otherwise 0.
	Owner int32
	Held  []Held // of Holding
	// Last is the sender's own last batch: of Holding in answer to Join. What is not held of those up to it is over.
	Last route.Batch
	// App is the app whose keys move as the sender knows: of Hold, Quiet and Holding without a Batch.
	App int32
	// Uses say how the sender's workers use the keys: of Quiet.
	Uses []route.Use
}

// Held is a batch that is held.
type Held struct {
	Batch route.Batch
	Keys  []plan.Keys
}

// Out is an action for the caller; exactly one of Send, Route, Record, Result and Fetch is set.
type Out struct {
	Send   *Message // to the site To
	To     string
	Route  *route.Out // a message for a server or a worker
	Record *Record    // tell the planner's store; Recorded takes its answer
	Result *Result    // a move is over
	Fetch  bool       // ask the store where all keys are; Fetched takes its answer
}

// Record is a change of owner to be written to the planner's store.
type Record struct {
	Batch    route.Batch
	Plan     uint64
	From, To int32
	Keys     []plan.Keys
}

// Result is the outcome of a move. Err is the reason why its keys stayed with the old owner.
type Result struct {
	Move  Move
	Batch route.Batch
	Bytes uint64 // of values, as pulled from the old owner
	Err   error
}
