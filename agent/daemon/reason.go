package daemon

// A Reason is why a connection that goes past the proxy is not adopted now.
type Reason string

// The reasons. Those in [Reason.Lasts] stay for the connection's life.
const (
	ReasonDue       Reason = ""           // it may be: nothing speaks against it
	ReasonUnheard   Reason = "unheard"    // no message of PS-lite's has been seen on it yet
	ReasonBothWays  Reason = "both-ways"  // its server answers on it, as BytePS's do, and aborts where it cannot
	ReasonNoProxy   Reason = "no-proxy"   // no proxy of this host takes its process's connections now
	ReasonNoPeer    Reason = "no-peer"    // nobody listens at the mesh port of the other host
	ReasonBusy      Reason = "busy"       // something is on its way; looked at again
	ReasonLoop      Reason = "loop"       // its process does not wait for it in epoll, in one thread
	ReasonShared    Reason = "shared"     // its process has it under several numbers
	ReasonAgain     Reason = "again"      // it was made after one to the same place was adopted, and went past again
	ReasonForbidden Reason = "forbidden"  // the kernel lets nobody stop the process's thread: it is traced, or rights lack
	ReasonFailed    Reason = "failed"     // something else, in the agent's log
	ReasonUnclosed  Reason = "not-closed" // it has received the end, and has not closed the connection
)

// reasons are all under which connections are counted.
var reasons = []Reason{ReasonUnheard, ReasonBothWays, ReasonNoProxy, ReasonNoPeer, ReasonBusy, ReasonLoop, ReasonShared, ReasonAgain, ReasonForbidden, ReasonFailed, ReasonUnclosed}
