package pslite

import (
	"math"
	"strconv"
)

// SchedulerID is the scheduler's node id. It is also that of the group of the scheduler
// alone.
const SchedulerID int32 = 1

// Groups of nodes are sums of these, in BarrierGroup and as receivers. As ids they are
// below those of single nodes.
const (
	SchedulerGroup int32 = 1
	ServerGroup    int32 = 2
	WorkerGroup    int32 = 4
)

// ServerID returns the node id of the server with that rank: 8, 10, 12, ...
func ServerID(rank int) int32 { return int32(8 + 2*rank) }

// WorkerID returns the node id of the worker with that rank: 9, 11, 13, ...
func WorkerID(rank int) int32 { return int32(9 + 2*rank) }

// Rank returns the role and, for servers and workers, the rank of a node id;
// false for groups and Empty.
func Rank(id int32) (role Role, rank int, ok bool) {
	switch {
	case id == SchedulerID:
		return Scheduler, 0, true
	// Below 8 are the groups: sums of scheduler, servers and workers.
	case id < 8 || id == Empty:
		return 0, 0, false
	case id%2 == 0:
		return Server, int(id-8) / 2, true
	}
	return Worker, int(id-9) / 2, true
}

// NodeName returns "scheduler", "server0", "worker3" and so on, or "" for an id that is
// not that of a single node.
func NodeName(id int32) string {
	role, rank, ok := Rank(id)
	switch {
	case !ok:
		return ""
	case role == Scheduler:
		return role.String()
	}
	return role.String() + strconv.Itoa(rank)
}

// AppendIdentity appends the ZMTP identity of a node's sockets: "ps9".
func AppendIdentity(dst []byte, id int32) []byte {
	return strconv.AppendInt(append(dst, "ps"...), int64(id), 10)
}

// ParseIdentity returns the node id that a ZMTP identity names; false for every other
// identity, and for the empty one of a node that has no id yet.
func ParseIdentity(identity []byte) (id int32, ok bool) {
	if len(identity) < 3 || identity[0] != 'p' || identity[1] != 's' {
		return Empty, false
	}
	var n int64
	for _, c := range identity[2:] {
		if c < '0' || c > '9' {
			return Empty, false
		}
		if n = 10*n + int64(c-'0'); n >= int64(Empty) {
			return Empty, false
		}
	}
	return int32(n), true
}

// KeyRange returns the keys [first, end) that belong to the server of that rank, of n
// servers, as Postoffice::GetServerKeyRanges computes them.
func KeyRange(rank, n int) (first, end uint64) {
	width := uint64(math.MaxUint64) / uint64(n)
	return width * uint64(rank), width * uint64(rank+1)
}

// Owner returns the rank of the server, of n, whose range holds key; false for the few
// keys at the upper end that the division leaves to nobody, and for the largest, which
// PS-lite reserves.
func Owner(key uint64, n int) (rank int, ok bool) {
	rank = int(key / (math.MaxUint64 / uint64(n)))
	return rank, rank < n
}

// Signature returns the number by which PS_RESEND recognizes a message in its ACK and
// drops repetitions. In dialect DMLC2017 the customer id takes the place of the app's,
// as it does in [Meta].
//
// PS-lite shifts the timestamp as a signed 32-bit number, so that from 2^30 on its sign
// extends over app, sender and receiver, and messages of different nodes get the same
// signature. That is reproduced here: a signature must be the one that PS-lite
// computes.
func Signature(m *Meta, sender, recver int32) uint64 {
	// The cast to 64 bits below extends the sign, as PS-lite's arithmetic does.
	low := m.Timestamp << 1
	if m.Request {
		low |= 1
	}
	return uint64(uint16(m.AppID))<<48 | uint64(uint8(sender))<<40 | uint64(uint8(recver))<<32 |
		uint64(int64(low))
}
