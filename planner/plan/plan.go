// Package plan is where a job's keys are: at home, with the server whose PS-lite
// range they lie in, or displaced, with another one.
//
// In come ranges of keys and their owners; out goes the owner of any key. The
// planner's strategies, its store and its service use it. Servers are named by
// their rank.
//
// # Parts
//
// A [PartSearch] finds the number of parts into which a large value is best divided,
// from measured steps: section 3.2 of Parallax (Kim and others 2019). With more parts
// more processors and links work on the value at once, but each part costs requests of
// its own. So a step takes about
//
//	theta0 + theta1/P + theta2 P
//
// with P parts. The search names the P to measure next, takes the duration of a step,
// and ends with a P and the fit. It has no clock and measures nothing itself.
//
// # Placement
//
// A [Placement] names the server that owns each key before a job starts. `psidecar
// partition --out` writes it as JSON (FORMAT.md), `--placement` of proxy and up reads
// it. A key without an entry stays at home, with the server whose PS-lite range
// contains it.
package plan

import (
	"math"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// Home is the owner of keys that are not displaced.
const Home int32 = -1

// Keys are the keys from First to Last, both included.
type Keys struct {
	First, Last uint64
}

// One returns the range that holds just the key.
func One(key uint64) Keys { return Keys{key, key} }

// Len returns how many keys there are, at most the largest uint64.
func (k Keys) Len() uint64 {
	if k.First == 0 && k.Last == math.MaxUint64 {
		return math.MaxUint64
	}
	return k.Last - k.First + 1
}

// A Range is keys with one owner.
type Range struct {
	Keys
	Owner int32 // a server's rank, or Home
}

// A Move takes keys from one server to another.
type Move struct {
	Keys
	From, To int32 // ranks
}

// HomeOf returns the rank of the server whose PS-lite range contains the key
// ([pslite.Owner]). PS-lite gives the few keys above the last range to no server; here
// the last one is their home, so that every key has an owner.
func HomeOf(key uint64, servers int) int32 {
	rank, ok := pslite.Owner(key, servers)
	if !ok {
		rank = servers - 1
	}
	return int32(rank)
}

// HomeRange returns the keys that are at home with the server.
func HomeRange(rank int32, servers int) Keys {
	first, end := pslite.KeyRange(int(rank), servers)
	k := Keys{first, end - 1}
	if int(rank) == servers-1 {
		k.Last = math.MaxUint64
	}
	return k
}
