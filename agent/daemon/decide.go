package daemon

import (
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A Connection is one on which a process of this host sends messages; see [observe.Sending].
type Connection struct {
	Cookie      uint64 // SO_COOKIE of the socket
	Local, Peer netip.AddrPort
	Via         netip.AddrPort // Peer, or the proxy's listener
	Dialect     pslite.Dialect // of the messages; Unknown: none has been seen
}

// direct reports whether the connection bypasses the proxy.
func (c *Connection) direct() bool { return c.Via == c.Peer }

// kernel is the kernel's state of a connection.
type kernel struct {
	received uint64        // bytes since it was made
	waiting  bool          // bytes are unacknowledged, unsent or unread
	quiet    time.Duration // since bytes were sent or received
}

// around are the circumstances of a connection, apart from its socket.
type around struct {
	proxy   bool          // a proxy of this host would accept the process's connects
	peer    bool          // a proxy listens at the other host
	fast    bool          // it may bypass the proxy, and its link is not what the job waits for
	again   bool          // an earlier one to the same place was ended lately
	waiting time.Duration // for how long it has been seen
}

// The bytes that a ZMTP peer sends which only receives: its greeting (64) and READY. One that
// has sent more answers on this connection.
const (
	leastHandshake = 64
	mostHandshake  = 512
)

// A connection must have been quiet for quietFor before it is tried, so that a process that
// sends without a break is not stopped in vain time and again. After patience it is tried even
// so. Neither is needed for correctness: see [ending].
const (
	quietFor = 10 * time.Millisecond
	patience = 5 * time.Second
)

// decide returns ReasonDue if a connection may be ended now, else the reason why not. The order
// of the cases puts lasting reasons before passing ones.
func decide(d Connection, k kernel, a around) Reason {
	switch {
	case d.Dialect == pslite.Unknown:
		return ReasonUnheard
	// BytePS aborts when a connection breaks on which it answers.
	case d.Dialect == pslite.BytePSRaw, k.received > mostHandshake:
		return ReasonBothWays
	case !a.proxy:
		return ReasonNoProxy
	case a.fast:
		return ReasonFast
	case a.again:
		return ReasonAgain
	case !a.peer:
		return ReasonNoPeer
	case k.received < leastHandshake, k.waiting, k.quiet < quietFor && a.waiting < patience:
		return ReasonBusy
	}
	return ReasonDue
}
