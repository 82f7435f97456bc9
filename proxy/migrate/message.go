package migrate

import (
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/route"
)

// Kind is what a message between sites says.
type Kind uint8

// The kinds.
const (
	Join    Kind = iota + 1 // the sender knows nothing: say what you hold
	Holding                 // answer to Join: all that the sender holds; with a Batch: is it over?
	Hold                    // requests for Keys must wait
	Quiet                   // of Batch, which has Keys, nothing is under way at the sender
	Release                 // Batch is over: its keys belong to Owner
)

// Message is what one site tells another.
type Message struct {
	Kind  Kind
	Batch route.Batch
	Keys  []plan.Keys // of Hold, Quiet and Holding with a Batch
	// Owner is, of Release, a rank, one of keys in parts, or route.Unchanged; of Holding:
	// blind, or 0; of Hold and Quiet of a batch whose keys go into parts: what they will
	// have for an owner, or waits; else 0.
	Owner int32
	Held  []Held // of Holding
}

// Held is a batch that is held.
type Held struct {
	Batch route.Batch
	Keys  []plan.Keys
}

// Out is something to be done: exactly one is set.
type Out struct {
	Send   *Message // to the site To
	To     string
	Route  *route.Out // a message for a server or a worker
	Record *Record    // tell the planner's store; Recorded takes its answer
	Result *Result    // a move is over
	Fetch  bool       // ask the store where all keys are; Fetched takes its answer
}

// Record is a change of owner that the store has to know.
type Record struct {
	Batch    route.Batch
	Plan     uint64
	From, To int32
	Keys     []plan.Keys
}

// Result is what became of a move. Err is why its keys are where they were.
type Result struct {
	Move  Move
	Batch route.Batch
	Bytes uint64
	Err   error
}
