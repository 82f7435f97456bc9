// Package keep is what a connection of the job needs to outlive the proxy that carries it.
// The agent holds duplicates of the job-side sockets (handover.Keep), so that they stay open
// when the proxy is killed. Nothing is taken out of the kernel's receive queue of such a
// socket before the far proxy has written it to its own job-side socket ([Window]): the queue
// is the retransmission buffer. What the next proxy must know, beside what the kernel knows
// ([Position]), is in a page of shared memory ([Page]) that the agent holds too.
//
// Two proxies resume a connection on a new link ([Offer]). Each states up to where it has
// consumed what its process sent, and how much it has written to its process; each then sends
// from where it has consumed, and drops what its process has already got. [Take] decides
// both, from the two positions alone.
//
// For a connection that a proxy hands over in order nothing is in flight; its [State] goes
// with the socket, and both sides speak of it as a [Pass].
//
// Package relay reads through a Window, and package proxy does the rest. This package knows
// sockets, but neither messages nor links.
package keep
