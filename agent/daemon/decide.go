package daemon

import (
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// A DirectConnection is a connection on which a process of this host sends messages past the
// proxy, as the agent has it.
type DirectConnection struct {
	Cookie      uint64 // the kernel's number of the socket
	Local, Peer netip.AddrPort
	Dialect     pslite.Dialect // of the messages; Unknown: none has been seen
}

// kernel is what the kernel says of a connection.
type kernel struct {
	received uint64        // bytes, since it was made
	waiting  bool          // something is not acknowledged, not sent or not read
	quiet    time.Duration // since bytes were sent or came
}

// around is what else speaks for and against adopting a connection.
type around struct {
	proxy   bool          // one of this host takes what the process connects
	peer    bool          // and one listens at the other host
	again   bool          // one like it was adopted lately
	waiting time.Duration // for how long it has been wanted
}

// What a ZMTP peer says that only listens: its greeting and READY.
const (
	leastHandshake = 64
	mostHandshake  = 512
)

// quietFor is how long a connection has been quiet before it is tried, so that a
// process that sends without a break is not stopped in vain time and again. One that
// never is quiet is tried all the same after patience. Neither is what keeps messages:
// see [ending].
const (
	quietFor = 10 * time.Millisecond
	patience = 5 * time.Second
)

// decide says whether a connection may be ended now, or why not.
func decide(d DirectConnection, k kernel, a around) Reason {
	switch {
	case d.Dialect == pslite.Unknown:
		return ReasonUnheard
	case d.Dialect == pslite.BytePSRaw, k.received > mostHandshake:
		return ReasonBothWays
	case !a.proxy:
		return ReasonNoProxy
	case a.again:
		return ReasonAgain
	case !a.peer:
		return ReasonNoPeer
	case k.received < leastHandshake, k.waiting, k.quiet < quietFor && a.waiting < patience:
		return ReasonBusy
	}
	return ReasonDue
}
