// Package keep is what a connection of the job needs to outlive the proxy that
// carries it. The agent holds duplicates of the job-side sockets (handover.Keep), so
// that they stay open when the proxy is killed. Of such a socket nothing is taken
// out of the kernel's queue before the far proxy has it in its own job-side
// socket ([Window]), so that the queue is the retransmission buffer. What the
// next proxy must know beside what the kernel knows ([Position]) is in a page of
// shared memory ([Page]) that the agent holds too.
//
// Two proxies take a connection up again on a new link ([Offer]): each says up to
// where it has consumed what its process sent and up to where its process got
// what the other's sent; each then sends from where it has consumed, and leaves
// out what is there. That they agree is decided by [Take], which does nothing
// else. Package relay reads through a Window, package proxy does the rest; the
// package knows of sockets, and of neither messages nor links.
package keep
