// Package redirect sends the TCP connects of a cgroup's processes to a proxy without their
// knowledge. Programs on the cgroup's connect hooks rewrite the destination to a listener of
// the proxy inside the process's own network namespace, after checking at each connect that the
// listener is there. The proxy asks the accepted socket for the original destination
// (SO_ORIGINAL_DST, which needs no privilege), and getpeername shows that destination to the
// process. If nobody listens, the connect goes direct, or fails if the group's [Policy] says
// so. What was redirected, left alone or refused is counted ([Reason]).
//
// # A connect, step by step
//
// The client calls connect. redirect4 or redirect6 looks up the listener for the client's
// network namespace and group, checks by the socket mark that a socket of the proxy listens
// there, stores the destination under the client's socket cookie (map sockets), and rewrites
// the address. Before the SYN leaves, note_connects stores the destination under the client's
// address and port too (map destinations), which are known only now. The proxy accepts, and its
// getsockopt finds the entry by the peer's address. When the client's socket closes, its
// entries are removed, unless the proxy has not asked yet: the client may have sent everything
// and closed before its connection was accepted. Closed sockets move to the map ended, for an
// agent that reads later what they sent.
//
// # State
//
// [Open] opens the state that is pinned in a folder of a BPF file system, or creates it.
// [Redirect.Attach] adds a cgroup, [Redirect.SetListener] says where the proxy listens,
// [Redirect.SetExclusions] what is never redirected, and [Redirect.Counts] returns the
// counters. Programs, links and maps are pinned, so they outlive the process; [Unload] removes
// all of them. Several processes, also of different versions, may have the state open. Changes
// of more than one entry are made under a file lock on the parent folder. A state that is
// complete gets its name by a rename, so a half-built one is never used.
//
// It needs Linux 5.15. The object compiled from the C sources by go generate is committed.
package redirect

//go:generate go run ../internal/reasons -package redirect -classes redirected,direct,refused,answered,unanswered -title "Counters of the redirecting programs" -intro "Each counter has a number of events: connects, or lookups by the proxy. redirected connects went to the proxy, direct ones bypassed it, refused ones failed; answered and unanswered are the proxy's lookups of an original destination."
//go:generate go tool bpf2go -target bpfel -cc clang -strip llvm-strip -go-package redirect redirect redirect.c -- -O2 -mcpu=v3 -Wall -Werror -Wno-unused-function
