// Package plan has the data types of plans: ranges of keys and their owners. A key is at home with
// the server whose PS-lite range it lies in, or displaced to another server, or held in parts on
// several. Servers are named by their PS-lite rank.
//
//   - [Owners] maps every key of a run to its owner, with an entry for displaced keys only. The
//     planner and each proxy have one.
//   - [Run] names a run of a job. Owners are of one run and never apply to another.
//   - [Merge] rebuilds owners from what the hosts of a run know, when the planner's store was lost.
//   - [Placement] has the owners of keys before a job starts. psidecar partition --out writes it
//     (FORMAT.md), --placement of proxy and up reads it.
//   - [Parted], [PartKey] and [PartBytes] define how a large value is divided among servers,
//     [PartSearch] finds into how many parts.
//
// All of it is plain data: no type has a lock, blocks or reads a clock.
//
// # The number of parts
//
// More parts let more processors and links work on a value at once, but each part costs requests of
// its own. By section 3.2 of Parallax (Kim and others, 2019) a step with P parts takes about
//
//	theta0 + theta1/P + theta2 P
//
// A [PartSearch] names the P to measure next, takes the measured duration, and ends with a P and
// the fitted theta.
package plan

import (
	"math"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Home is the owner of keys that are not displaced.
const Home int32 = -1

// Keys are the keys from First to Last, both included.
type Keys struct {
	First, Last uint64
}

// One returns the range that holds just the key.
func One(key uint64) Keys { return Keys{key, key} }

// Len returns the number of keys. It saturates at the largest uint64, since the range of all keys
// has one more.
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

// HomeOf returns the rank of the server whose PS-lite range contains the key ([pslite.Owner]).
// PS-lite rounds the ranges down and gives the few keys above the last one to no server; here the
// last server is their home, so that every key has an owner.
func HomeOf(key uint64, servers int) int32 {
	rank, ok := pslite.Owner(key, servers)
	if !ok {
		rank = servers - 1
	}
	return int32(rank)
}

// HomeRange returns the keys that are at home with the server, for the last server including those
// above its PS-lite range.
func HomeRange(rank int32, servers int) Keys {
	first, end := pslite.KeyRange(int(rank), servers)
	k := Keys{first, end - 1}
	if int(rank) == servers-1 {
		k.Last = math.MaxUint64
	}
	return k
}
