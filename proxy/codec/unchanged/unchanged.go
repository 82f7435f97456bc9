// Package unchanged leaves out of a pull's answer the values that are bit-identical to what
// this worker last got for the same keys. It is lossless: what is decoded is what was
// encoded, bit for bit, NaNs included.
//
// The sender gives the values of an answer and a name for its keys; what is written lists
// the values that changed. A [Sender] and the [Receiver] at the other end serve one
// direction of one link and keep the last values of as many answers as fit their limits.
// The sender alone decides what both keep, and writes every decision into the stream;
// answers are numbered and lengths are checked, so that the two cannot come to disagree
// unnoticed. The codec of proxy links, package values, calls both.
package unchanged

import (
	"errors"
)

// Limits bound the memory of a [Sender] or [Receiver]. Both ends of a link must use the
// same: the receiver refuses what exceeds its own.
type Limits struct {
	Bytes   int `json:"bytes"`   // of all values kept
	Answers int `json:"answers"` // kept at a time
}

// DefaultLimits keep up to 64 MiB at each end of a link.
var DefaultLimits = Limits{Bytes: 64 << 20, Answers: 4096}

// ErrCorrupt is wrapped by all errors of a [Receiver]: the other end did not write this in
// the state that both should have. The link cannot go on.
var ErrCorrupt = errors.New("unchanged: corrupt answer")

// form is the first byte of an encoded answer. The second is the low byte of the answer's
// number on this link.
type form byte

const (
	formWhole   form = iota // slots to forget; slot; uvarint length in bytes; the values: both keep them
	formChanges             // slot; sparse vector of what changed
)

// slotEnd ends the list of slots to forget, in which slots are written plus one.
const slotEnd = 0
