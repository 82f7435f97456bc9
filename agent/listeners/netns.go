package listeners

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/handover"
)

// opened are the listeners of a group in a network namespace, or the mesh listeners of a
// namespace. The agent keeps its descriptors open beside the proxies' copies: the socket, and
// the connects in its backlog, outlive a proxy. Guarded by Listeners.mu.
type opened struct {
	job          string
	pending      bool // no process has met its scheduler yet, so job is empty
	group, netns uint64
	cookie       uint64   // SO_NETNS_COOKIE, by which the BPF programs know the namespace
	sockets      []socket // IPv4, then IPv6 if the namespace has it
	mesh         bool     // for links of other hosts' proxies, not for the job's connects
	steered      bool     // in the kernel's map: connects go here
}

// socket is a listener. id names it in messages to proxies and changes each time it is handed
// out.
type socket struct {
	id   uint64
	at   netip.AddrPort
	file *os.File
}

func (o *opened) close() error {
	var failed error
	for _, s := range o.sockets {
		failed = errors.Join(failed, s.file.Close())
	}
	return failed
}

// resetWaiting resets the connections in the listener's backlog, so that their clients fail at
// once. Closing the agent's descriptor would do that only if it were the last one: a proxy that
// is stuck keeps its copy, and the clients would wait for it.
//
// It accepts at most backlog connections, so new connects cannot hold it up for ever.
func (s socket) resetWaiting() error {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("emptying the queue of %s: %w", s.at, err)
	}
	return raw.Control(func(listener uintptr) {
		for range backlog {
			fd, _, err := unix.Accept4(int(listener), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if err != nil {
				return // the queue is empty
			}
			// Linger with time 0 makes close send a reset rather than a FIN, which a client
			// would take for an orderly end.
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			unix.Close(fd)
		}
	})
}

// ports returns the ports in the form of the BPF map; 0 where the family has no listener.
func (o *opened) ports() (p redirect.Ports) {
	for _, s := range o.sockets {
		if s.at.Addr().Is4() {
			p.IPv4 = s.at.Port()
		} else {
			p.IPv6 = s.at.Port()
		}
	}
	return p
}

// message returns the message that hands over socket i, and the file to send with it. closed are the
// cgroups that fail closed.
func (o *opened) message(i int, closed map[uint64]bool) (handover.Message, *os.File) {
	s := o.sockets[i]
	return handover.Message{Kind: handover.Listening, ID: s.id, Job: o.job, Cgroup: o.group, Netns: o.netns, Address: s.at, Mesh: o.mesh, On: closed[o.group]}, s.file
}

// errEnded says that a process ended between its discovery and now. It is expected, and callers
// skip the process.
var errEnded = errors.New("the process has exited")

// openNetns opens the file of a network namespace, such as /proc/PID/ns/net, and returns its
// inode, which identifies the namespace while the file is open. The caller closes it. The error
// is errEnded if the process is gone.
func openNetns(path string) (*os.File, uint64, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("opening network namespace %s: %w", path, errEnded)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("opening a network namespace: %w", err)
	}
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("looking at network namespace %s: %w", path, err), f.Close())
	}
	return f, s.Ino, nil
}

// openIn opens listeners at two addresses in a network namespace; see openHere.
func openIn(ns *os.File, mark uint32, v4, v6 netip.AddrPort) (o *opened, err error) {
	err = inNetns(ns, func() (err error) {
		o, err = openHere(mark, v4, v6)
		return err
	})
	return o, err
}

// inNetns runs f in a network namespace, on a thread of its own, and waits for it. It needs
// CAP_SYS_ADMIN. f must not start goroutines that depend on the namespace: they would run on
// other threads.
//
// If the thread cannot return to its namespace it stays locked, and the Go runtime ends it
// together with its goroutine. Otherwise unrelated goroutines would continue in a job's
// namespace.
func inNetns(ns *os.File, f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var before *os.File
		if before, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			runtime.UnlockOSThread()
			return
		}
		defer before.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("entering network namespace %s (needs CAP_SYS_ADMIN): %w", ns.Name(), err)
			runtime.UnlockOSThread()
			return
		}
		err = f()
		if unix.Setns(int(before.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return err
}

// openHere opens listeners in the network namespace of the calling thread, which must be
// locked. A namespace without IPv6 gets the IPv4 one alone. After an error nothing is left
// open.
func openHere(mark uint32, v4, v6 netip.AddrPort) (*opened, error) {
	o := &opened{}
	for _, a := range []netip.AddrPort{v4, v6} {
		s, cookie, err := openSocket(a, mark)
		if a.Addr().Is6() && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)) {
			continue // no IPv6 there
		}
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			err = fmt.Errorf("%w: is its loopback interface up?", err)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listening at %s in the job's network namespace: %w", a, err), o.close())
		}
		o.cookie = cookie
		o.sockets = append(o.sockets, s)
	}
	return o, nil
}

// backlog is the accept queue's length: how many connects can wait for the next proxy while
// there is none. The kernel caps it at net.core.somaxconn.
const backlog = 4096

// openSocket listens at an address in the thread's network namespace (port 0 means any free
// one) and returns the namespace's cookie with the socket. It makes the socket itself rather
// than by package net: Go's listeners speak MPTCP by default, and the mark must be set before
// the first connect arrives.
func openSocket(a netip.AddrPort, mark uint32) (s socket, cookie uint64, err error) {
	domain := unix.AF_INET
	var at unix.Sockaddr
	if a.Addr().Is6() {
		domain, at = unix.AF_INET6, &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	} else {
		at = &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return s, 0, err
	}
	s.file = os.NewFile(uintptr(fd), "listener")
	defer func() {
		if err != nil {
			s.file.Close()
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return s, 0, err
	}
	if a.Addr().Is6() {
		// IPv4 has a socket of its own. Without this the two could not share a port, as the
		// mesh listeners do.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return s, 0, err
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
		return s, 0, fmt.Errorf("marking it (needs CAP_NET_ADMIN): %w", err)
	}
	if err := errors.Join(unix.Bind(fd, at), unix.Listen(fd, backlog)); err != nil {
		return s, 0, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return s, 0, err
	}
	switch n := name.(type) {
	case *unix.SockaddrInet4:
		s.at = netip.AddrPortFrom(a.Addr(), uint16(n.Port))
	case *unix.SockaddrInet6:
		s.at = netip.AddrPortFrom(a.Addr(), uint16(n.Port))
	}
	cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return s, 0, fmt.Errorf("reading the namespace's inode: %w", err)
	}
	return s, cookie, nil
}
