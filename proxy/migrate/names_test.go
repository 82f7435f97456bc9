package migrate

import (
	"fmt"
	"math/bits"

	"github.com/psidecar/psidecar/proxy/route"
)

// Numbers that only name something are told apart from those that count: what
// nothing but a list of what was seen names any more can be left out of it, and
// the rest can be renamed without a change of order. That, and that only the
// order of a router's generations is written, makes worlds the same that differ
// only in how they have come about.

// The sorts of names: timestamps of the router's own in the name of each worker,
// numbers of each site's batches, timestamps of each worker's requests.
const (
	ownNames   = 0
	batchNames = 2
	stepNames  = 4
	sorts      = 6
)

// names are sets of names of each sort: bit n-1 is n.
type names [sorts]uint32

func (n *names) add(sort int, number uint64) {
	if number == 0 || number > 32 {
		panic(fmt.Sprintf("name %d of sort %d: the search has room for 32", number, sort))
	}
	n[sort] |= 1 << (number - 1)
}

func (n *names) join(m *names) {
	for i := range n {
		n[i] |= m[i]
	}
}

// rename returns the name that number gets where only those in n are left:
// their order stays. Requests keep their timestamps, which are compared with a
// worker's count.
func (n *names) rename(sort int, number uint64) uint64 {
	if n == nil || sort >= stepNames {
		return number
	}
	return 1 + uint64(bits.OnesCount32(n[sort]&(1<<(number-1)-1)))
}

// dead reports whether a name of something that was seen is in use nowhere.
func (n *names) dead(sort int, number uint64) bool {
	return n != nil && n[sort]>>(number-1)&1 == 0
}

// ofWorker is whose a signature's or message's timestamp is.
func ofWorker(worker int, timestamp int32) (sort int, number uint64) {
	if timestamp >= route.FirstOwn {
		return ownNames + worker, uint64(timestamp) & (1<<28 - 1)
	}
	return stepNames + worker, uint64(timestamp)
}

// ofSignature returns the worker of a signature, whose message's timestamp is.
func ofSignature(signature uint64) (worker int, timestamp int32) {
	id := int32(signature >> 32 & 0xff)
	if id%2 == 0 { // to a server
		id = int32(signature >> 40 & 0xff)
	}
	return workerIndex(id), int32(uint32(signature) >> 1)
}
