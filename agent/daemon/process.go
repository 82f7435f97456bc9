package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/discover"
)

// Bounds of the data read of a process.
const (
	mostFiles   = 1 << 16
	mostThreads = 4096
	mostInfo    = 4 << 20 // bytes of an epoll's fdinfo
)

// watched is one registration of an epoll, as fdinfo shows it.
type watched struct {
	number int // descriptor in the process
	events uint32
	data   uint64 // epoll_data, which the process gets back with each event
}

// loop describes the event loop that serves a connection: which thread waits, and for what.
type loop struct {
	socket  int       // descriptor of the connection in the process
	epoll   int       // descriptor of the epoll in the process
	thread  int       // id of the thread that waits
	signals []watched // eventfds in the epoll, by which other threads wake it
}

// refusal is an error that means that a connection stays as it is.
type refusal struct {
	why Reason
	err error
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %v", r.why, r.err) }
func (r *refusal) Unwrap() error { return r.err }

// refusef returns a refusal.
func refusef(why Reason, format string, args ...any) error {
	return &refusal{why, fmt.Errorf(format, args...)}
}

// findLoop finds the one epoll and the one thread that wait for input on a socket, from
// /proc/PID/fd, fdinfo and task. Anything less simple is refused: a socket under two numbers
// could be closed under one and read under the other. Errors are refusals. The cost is one
// readlink for each of the process's descriptors.
func findLoop(proc *discover.ProcFS, pid int, inode uint32) (l loop, err error) {
	dir := fmt.Sprintf("%d/fd", pid)
	names, err := discover.ListNames(proc, dir, mostFiles)
	if err != nil && !errors.Is(err, discover.ErrTooLarge) {
		return l, refusef(ReasonFailed, "looking for its files: %w", err)
	}
	wanted, links := fmt.Sprintf("socket:[%d]", inode), map[int]string{}
	l.socket = -1
	var epolls []int
	for _, name := range names {
		link, err := proc.ReadLink(dir + "/" + name)
		number, bad := strconv.Atoi(name)
		if err != nil || bad != nil {
			continue // closed meanwhile
		}
		switch {
		case link == wanted && l.socket >= 0:
			return l, refusef(ReasonShared, "the socket is its files %d and %d", l.socket, number)
		case link == wanted:
			l.socket = number
		case link == "anon_inode:[eventpoll]":
			epolls = append(epolls, number)
		case strings.HasPrefix(link, "anon_inode:[eventfd"):
			links[number] = link
		}
	}
	if l.socket < 0 {
		return l, refusef(ReasonBusy, "process %d does not have it any more", pid)
	}
	found := 0
	for _, e := range epolls {
		// An epoll that was closed meanwhile watches nothing any more.
		info, err := discover.ReadProc(proc, fmt.Sprintf("%d/fdinfo/%d", pid, e), mostInfo)
		if err != nil {
			continue
		}
		all := parseEpoll(info)
		if !slices.ContainsFunc(all, func(w watched) bool { return w.number == l.socket && w.events&unix.EPOLLIN != 0 }) {
			continue
		}
		found++
		l.epoll, l.signals = e, nil
		for _, w := range all {
			// ZeroMQ wakes its loops by eventfds.
			if links[w.number] != "" {
				l.signals = append(l.signals, w)
			}
		}
	}
	// Several epolls may watch one socket; which thread would read the end is then unknown.
	if found != 1 {
		return l, refusef(ReasonLoop, "%d of its epolls have the socket", found)
	}
	l.thread, err = waiter(proc, pid, l.epoll)
	return l, err
}

// parseEpoll parses the fdinfo of an epoll. It has a line "tfd: ... events: ... data: ..." for
// each registration, the last two in hexadecimal.
func parseEpoll(info []byte) (all []watched) {
	for line := range bytes.Lines(info) {
		var w watched
		if n, err := fmt.Sscanf(string(line), "tfd: %d events: %x data: %x", &w.number, &w.events, &w.data); n == 3 && err == nil {
			all = append(all, w)
		}
	}
	return all
}

// waiter returns the thread that waits with an epoll now. None is a passing state: the thread
// is handling an event. With two, which of them would read the end is undecided.
func waiter(proc *discover.ProcFS, pid, epoll int) (thread int, err error) {
	names, err := discover.ListNames(proc, fmt.Sprintf("%d/task", pid), mostThreads)
	if err != nil {
		return 0, refusef(ReasonBusy, "looking for its threads: %w", err)
	}
	for _, name := range names {
		id, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		text, err := discover.ReadProc(proc, fmt.Sprintf("%d/task/%d/syscall", pid, id), 4096)
		if err != nil || !waitsWith(string(text), epoll) {
			continue
		}
		if thread != 0 {
			return 0, refusef(ReasonLoop, "threads %d and %d wait with one epoll", thread, id)
		}
		thread = id
	}
	if thread == 0 {
		return 0, refusef(ReasonBusy, "no thread waits for it now")
	}
	return thread, nil
}

// waitsWith reports whether a thread's syscall file shows that it sleeps in a wait for an
// epoll. The file has the number of the call and its arguments; the first one of each
// epoll_wait variant is the descriptor.
func waitsWith(text string, epoll int) bool {
	f := strings.Fields(text)
	if len(f) < 2 {
		return false // "running"
	}
	number, err := strconv.Atoi(f[0])
	if err != nil || !slices.Contains(epollWaits, number) {
		return false
	}
	first, err := strconv.ParseUint(f[1], 0, 64)
	return err == nil && first == uint64(epoll)
}
