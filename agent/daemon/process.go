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
	mostInfo    = 4 << 20 // bytes of what the kernel says of an epoll's files
)

// A watched file is one of an epoll's.
type watched struct {
	number int // of the file in its process
	events uint32
	data   uint64
}

// A loop is the thread that waits for a connection.
type loop struct {
	socket  int       // the connection's number in its process
	epoll   int       // the number of what the thread waits with
	thread  int       // its thread id
	signals []watched // eventfds among what it waits for: how other threads wake it
}

// refusal is a reason for which a connection stays as it is.
type refusal struct {
	why Reason
	err error
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %v", r.why, r.err) }
func (r *refusal) Unwrap() error { return r.err }

func refusef(why Reason, format string, args ...any) error {
	return &refusal{why, fmt.Errorf(format, args...)}
}

// findLoop finds the epoll instance that waits for input of the socket with an
// inode.
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
			if links[w.number] != "" {
				l.signals = append(l.signals, w)
			}
		}
	}
	if found != 1 {
		return l, refusef(ReasonLoop, "%d of its epolls have the socket", found)
	}
	l.thread, err = waiter(proc, pid, l.epoll)
	return l, err
}

// parseEpoll reads what the kernel says of an epoll's files.
func parseEpoll(info []byte) (all []watched) {
	for line := range bytes.Lines(info) {
		var w watched
		if n, err := fmt.Sscanf(string(line), "tfd: %d events: %x data: %x", &w.number, &w.events, &w.data); n == 3 && err == nil {
			all = append(all, w)
		}
	}
	return all
}

// waiter returns the one thread that waits with an epoll now.
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

// waitsWith reads a thread's /proc/TID/syscall: a number and its arguments, where it
// sleeps in one.
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
