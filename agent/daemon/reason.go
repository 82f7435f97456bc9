package daemon

import "github.com/psidecar/psidecar/internal/page"

// A Reason says why a connection is left as it is now. It is a label of metrics.
type Reason string

// The reasons. BothWays, Loop, Shared, Forbidden and Failed are final for a connection once it
// has been tried; the others may pass.
const (
	ReasonDue       Reason = ""            // nothing speaks against it
	ReasonUnheard   Reason = "unheard"     // no PS-lite message has been seen on it yet
	ReasonBothWays  Reason = "both-ways"   // its server answers on it, as BytePS's do, and aborts if it cannot
	ReasonNoProxy   Reason = "no-proxy"    // no proxy of this host accepts its process's connects now
	ReasonNoPeer    Reason = "no-peer"     // no proxy listens at the mesh port of the other host
	ReasonFast      Reason = page.FastLink // it need not go through the proxy: its link is not what the job waits for
	ReasonBusy      Reason = "busy"        // data is in flight; tried again
	ReasonLoop      Reason = "loop"        // its process does not wait for it in epoll, in a single thread
	ReasonShared    Reason = "shared"      // its process has it under several descriptors
	ReasonAgain     Reason = "again"       // an earlier one to the same place was ended lately
	ReasonForbidden Reason = "forbidden"   // the thread may not be stopped: another process traces it, or capabilities are missing
	ReasonFailed    Reason = "failed"      // anything else; see the agent's log
	ReasonUnclosed  Reason = "not-closed"  // the process has received the end and has not closed the connection
)

// reasons are the values of the reason label, so that every series exists from the start.
var reasons = []Reason{ReasonUnheard, ReasonBothWays, ReasonNoProxy, ReasonNoPeer, ReasonFast, ReasonBusy, ReasonLoop, ReasonShared, ReasonAgain, ReasonForbidden, ReasonFailed, ReasonUnclosed}
