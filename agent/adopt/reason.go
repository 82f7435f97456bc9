package adopt

// A Reason is why a connection that goes past the proxy is not adopted now.
type Reason string

// The reasons. Those in [Reason.Lasts] stay for the connection's life.
const (
	Due       Reason = ""           // it may be: nothing speaks against it
	Unheard   Reason = "unheard"    // no message of PS-lite's has been seen on it yet
	BothWays  Reason = "both-ways"  // its server answers on it, as BytePS's do, and aborts where it cannot
	NoProxy   Reason = "no-proxy"   // no proxy of this host takes its process's connections now
	NoPeer    Reason = "no-peer"    // nobody listens at the mesh port of the other host
	Busy      Reason = "busy"       // something is on its way; looked at again
	Loop      Reason = "loop"       // its process does not wait for it in epoll, in one thread
	Shared    Reason = "shared"     // its process has it under several numbers
	Again     Reason = "again"      // it was made after one to the same place was adopted, and went past again
	Forbidden Reason = "forbidden"  // the kernel lets nobody stop the process's thread: it is traced, or rights lack
	Failed    Reason = "failed"     // something else, in the agent's log
	Unclosed  Reason = "not-closed" // it was told the end, and has not closed it
)

// reasons are all under which connections are counted.
var reasons = []Reason{Unheard, BothWays, NoProxy, NoPeer, Busy, Loop, Shared, Again, Forbidden, Failed, Unclosed}
