// Package compact is the lossless codec of links between proxies: whatever the other
// end can derive by itself is left out of messages about keys. Decoding restores the
// encoded message byte for byte.
//
//   - The meta differs in a few bytes from one before it; only these go.
//   - Keys go by package keylist: by reference, as positions, or packed.
//   - An answer that has the keys of its request says which request that was.
//   - Lengths go like keys, as their running sums.
//   - Values most of which are zero, or one other word, go by package sparsewords,
//     those of which many are equal by keylist's word lists, others by package planes or
//     unchanged.
//   - Values that another process of the job got on the same host go as a reference to
//     those, by package shared.
//
// A [Sender] takes the frames of a message and writes its head, from which a
// [Receiver] restores the frames; package relay calls both and gets them from
// [Codec]. A Sender and the Receiver at the other end share their state as those of
// keylist do: they serve one direction of one link and see all encoded messages in
// order, each used by one goroutine. Requests and their answers travel on different
// links, since each node answers over the connection that it made. So all links to
// one instance of the other proxy meet in a [Peer], which remembers the requests that
// answers may name.
//
// Package values wraps this codec for the links on which values are coded too; it
// calls EncodeAny and PackValues where the relay calls Encode.
//
// An encoded message is its head, which holds all frames except values that are not
// packed and frames that the relay does not hold; these follow as they are. The head
// is
//
//	flags     1 byte
//	identity  if flagged: uvarint length, bytes
//	meta      see metas
//	keys      by keylist, or if flagged: uvarint link, uvarint number of the request
//	values    if flagged: by wordlist, by sparsewords, or with both flags by planes; or, shared, uvarint number, and
//	          before the first number on a link the group's name (16 bytes)
//	lens      if flagged; see lens
package compact

import (
	"errors"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/payoff"
)

// Name is the codec's name in the hello of a link.
const Name = "compact"

const (
	hasIdentity byte = 1 << iota
	hasLens
	// keysOfRequest: the keys are those of the request that is named.
	keysOfRequest
	// retained: this is a request whose keys the sender keeps for its answer.
	retained
	// hasValues: the message has a values frame that the relay held. It follows as it is,
	// before the lens where there are any, unless one of the next three flags says
	// otherwise.
	hasValues
	// packedValues: the values frame is in the head.
	packedValues
	// sparseValues: likewise, by sparsewords.
	sparseValues
	// sharedValues: the values frame came, or is about to come, over the lane of the link's
	// group; see package shared.
	sharedValues
)

// planeValues: the values frame is in the head, by package planes.
const planeValues = packedValues | sparseValues

// Limits bound the memory for one peer and its links. Both ends must use the same; they
// agree on them when a link is made. Sizes are in bytes.
type Limits struct {
	Keys keylist.Limits `json:"keys"` // of each direction of each link
	Lens keylist.Limits `json:"lens"` // likewise
	// ValuesBytes is the size of the largest values frame that is packed.
	ValuesBytes int `json:"values_bytes"`
	// SparseBytes is that of the largest one whose words may go by sparsewords; 0
	// where the other side does not know of it.
	SparseBytes int `json:"sparse_bytes"`
	// PlanesBytes is that of the largest one that may go by package planes; likewise,
	// and then lists of words have planes and firsts, too.
	PlanesBytes int `json:"planes_bytes"`
	// RetainedRequests and RetainedBytes bound the requests whose keys are kept
	// for their answers, of all links to one peer.
	RetainedRequests int `json:"retained_requests"`
	RetainedBytes    int `json:"retained_bytes"`
	// SharedBytes bounds the values that are kept of one job for all processes of
	// another host; 0 where nothing is, or the other side does not know of it.
	SharedBytes int `json:"shared_bytes"`
	// SharedForms says which forms of shared values are understood beside those of the first
	// version: from 1 on, those by key.
	SharedForms int `json:"shared_forms"`
	// ShareTrials has what finds out whether answers arrive sooner as they are; nil: they are shared
	// in any case. It is this proxy's alone and not part of the offer.
	ShareTrials *payoff.Trials `json:"-"`
	// ShareLeast is the size of the smallest values that are shared, in bytes; 0: shared.Least.
	// It is not part of the offer either.
	ShareLeast int `json:"-"`
}

// sharedByKey are the [Limits].SharedForms from which on answers are shared by key.
const sharedByKey = 1

// DefaultLimits keep the memory of two hosts for each other under about 64 MiB for the
// requests in flight, and what keylist.DefaultLimits says for each link.
var DefaultLimits = Limits{
	Keys:             keylist.DefaultLimits,
	Lens:             keylist.Limits{TableBytes: 4 << 20, TableLists: 64, ListBytes: 96 << 20},
	ValuesBytes:      keylist.MostWords,
	SparseBytes:      64 << 20,
	PlanesBytes:      1 << 20,
	RetainedRequests: 16384,
	RetainedBytes:    64 << 20,
	SharedBytes:      256 << 20,
	SharedForms:      sharedByKey,
}

// ErrCorrupt is wrapped by all errors of a [Receiver]: the other end did not write this in
// the state that both should have. The link cannot go on.
var ErrCorrupt = errors.New("compact: corrupt message")

// fewestKeys is how many bytes of keys make a message worth encoding.
const fewestKeys = 16
