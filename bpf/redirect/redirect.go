// Package redirect sends the TCP connects of a cgroup's processes to a proxy,
// without their knowing. Programs on the cgroup's connect hooks rewrite the
// destination to a listener that the proxy has inside the process's own
// network namespace, after looking, at each connect, whether it is there; the
// proxy asks the accepted socket for the original destination (SO_ORIGINAL_DST,
// which needs no privilege), and getpeername shows it to the process. Where
// nobody listens the connect goes its own way, or fails where the group says
// so ([Policy]). What was redirected, left alone or refused is counted
// ([Reason]).
//
// In come cgroups ([Redirect.Attach]), the ports of listeners
// ([Redirect.SetListener]) and exclusions; nothing comes out but the kernel's
// new behaviour and counters ([Redirect.Counts]). The agent calls it. Programs,
// links and maps are pinned in a folder of a BPF file system, so that they
// outlive the process; [Unload] removes all of it.
//
// Lowest kernel: Linux 5.15. The C sources beside this file are compiled by go
// generate; the object is committed.
package redirect

//go:generate go run ../internal/reasons -package redirect -classes redirected,direct,refused,answered,unanswered -title "What the redirecting programs count" -intro "Each counter has a number of events: connects, or questions of the proxy. redirected went to the proxy, direct went their own way, refused failed; answered and unanswered are the proxy's questions for an original destination."
//go:generate go tool bpf2go -target bpfel -cc clang -strip llvm-strip -go-package redirect redirect redirect.c -- -O2 -mcpu=v3 -Wall -Werror -Wno-unused-function
