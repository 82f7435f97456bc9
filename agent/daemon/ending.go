package daemon

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/discover"
)

// An ending tells a process that nothing more comes on one of its connections, so that
// it closes it in order and makes it again.
//
// Reset from outside, a connection loses what its process has taken for it and not
// written yet, a message of which the rest would be written next, and what the kernel
// has of it: none of that can be seen whole from outside. A process that reads the end
// itself loses nothing that is in the kernel: its close has it delivered. One loss is
// left: libzmq drops a message that its thread is about to write, or has partly
// written. So the end comes at a moment at which its thread has none:
//
//   - It is stopped (ptrace), while it waits in epoll with nothing to do: the kernel
//     says that its call was interrupted, which it is only where no event was there.
//     libzmq tries again then, as it must.
//   - It does not wait to write, which it would with a part of a message in hand: it
//     may have been asleep because the socket was full, and the socket empty by now.
//   - Nothing is in the socket, and no other thread has woken it (its eventfds).
//   - Now reading is shut down (shutdown(SHUT_RD), of the socket itself, through
//     pidfd_getfd). If others have woken it meanwhile, their eventfds are taken out
//     of its epoll and put in again: events come in the order in which they are
//     there, so that it reads the end before it is notified of a message.
//   - It is let go. Messages that came to it meanwhile go out on the next connection.
//
// If the agent is killed at any moment in between, the kernel lets the thread go on.
type ending struct {
	proc  *discover.ProcFS
	pid   int
	inode uint32
	loop  loop

	pidfd, socket, epoll int
	signals              []int // this process's numbers of loop.signals
	base                 int   // numbers above which none of the process's signals is

	shut func(socket int) error // nil, but in tests: shuts reading down
}

// stopFor is how long a thread that sleeps may take to stop.
const stopFor = 20 * time.Millisecond

// onThread runs f on a thread of its own that ends with it, and with it whatever it has
// traced or opened.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread() // the first thread of a process does not end
			done <- onThread(f)
			return
		}
		done <- f()
	}()
	return <-done
}

// run ends the connection, or returns a [refusal] and has changed nothing. Its thread
// has files of its own, so that numbers can be those of the other process.
func (e *ending) run() error {
	return onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return refusef(ReasonFailed, "having files apart: %w", err)
		}
		if err := e.open(); err != nil {
			return err
		}
		detach, err := e.stop()
		defer func() { err = errors.Join(err, detach()) }()
		if err == nil {
			err = e.writes()
		}
		if err != nil {
			return err
		}
		return e.shutRead()
	})
}

// open gets the process's files.
func (e *ending) open() (err error) {
	for _, s := range e.loop.signals {
		e.base = max(e.base, s.number+1)
	}
	if e.pidfd, err = unix.PidfdOpen(e.pid, 0); err != nil {
		return refusef(ReasonBusy, "process %d: %w", e.pid, err)
	}
	if e.socket, err = e.file(e.loop.socket); err != nil {
		return err
	}
	var s unix.Stat_t
	if err := unix.Fstat(e.socket, &s); err != nil || s.Ino != uint64(e.inode) {
		return refusef(ReasonBusy, "its file %d is another one by now", e.loop.socket)
	}
	if e.epoll, err = e.file(e.loop.epoll); err != nil {
		return err
	}
	for _, s := range e.loop.signals {
		f, err := e.file(s.number)
		if err != nil {
			return err
		}
		e.signals = append(e.signals, f)
	}
	return nil
}

// file returns a file of the process's, with a number above all of its signals'.
func (e *ending) file(number int) (int, error) {
	f, err := unix.PidfdGetfd(e.pidfd, number, 0)
	if err != nil {
		return -1, refusef(denied(err), "its file %d: %w", number, err)
	}
	above, err := unix.FcntlInt(uintptr(f), unix.F_DUPFD_CLOEXEC, e.base)
	if err != nil {
		return -1, refusef(ReasonFailed, "its file %d: %w", number, err)
	}
	return above, unix.Close(f)
}

func denied(err error) Reason {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		return ReasonForbidden
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EBADF):
		return ReasonBusy
	}
	return ReasonFailed
}

// stop stops the thread where it waits. Detach lets it go on.
func (e *ending) stop() (detach func() error, err error) {
	thread, signal := e.loop.thread, 0
	if err := unix.PtraceSeize(thread); err != nil {
		return func() error { return nil }, refusef(denied(err), "stopping thread %d: %w", thread, err)
	}
	stopped := false
	detach = func() error {
		if !stopped {
			return nil // the end of this thread does it
		}
		_, _, no := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(thread), 0, uintptr(signal), 0, 0)
		if no != 0 && no != unix.ESRCH {
			return fmt.Errorf("letting thread %d go on: %w", thread, no)
		}
		return nil
	}
	if err := unix.PtraceInterrupt(thread); err != nil {
		return detach, refusef(ReasonBusy, "stopping thread %d: %w", thread, err)
	}
	for end := time.Now().Add(stopFor); ; {
		var status unix.WaitStatus
		got, err := unix.Wait4(thread, &status, unix.WALL|unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return detach, refusef(ReasonBusy, "stopping thread %d: %w", thread, err)
		case got == thread && !status.Stopped():
			return detach, refusef(ReasonBusy, "thread %d has ended", thread)
		case got == thread:
			stopped = true
			if int(status)>>16 != unix.PTRACE_EVENT_STOP {
				signal = int(status.StopSignal()) // it gets it after all
				return detach, refusef(ReasonBusy, "thread %d is to have a signal", thread)
			}
			return detach, e.waits()
		case time.Now().After(end):
			return detach, refusef(ReasonBusy, "thread %d does not stop", thread)
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// waits returns nil if the stopped thread waits in epoll, and no event was there.
func (e *ending) waits() error {
	call, result, err := interrupted(e.loop.thread)
	if err != nil {
		return refusef(denied(err), "asking what thread %d does: %w", e.loop.thread, err)
	}
	for _, n := range epollWaits {
		if call == n && result == -int64(unix.EINTR) {
			return nil
		}
	}
	return refusef(ReasonBusy, "thread %d has something to do", e.loop.thread)
}

// writes returns nil if the stopped thread does not wait for room to write in. A
// process that always uses edge-triggered notification (EPOLLET), as Go's runtime does,
// shows no such sign.
func (e *ending) writes() error {
	info, err := discover.ReadProc(e.proc, fmt.Sprintf("%d/fdinfo/%d", e.pid, e.loop.epoll), mostInfo)
	if err != nil {
		return refusef(ReasonBusy, "asking what thread %d waits for: %w", e.loop.thread, err)
	}
	for _, w := range parseEpoll(info) {
		if w.number == e.loop.socket && w.events&unix.EPOLLIN != 0 && (w.events&unix.EPOLLET != 0 || w.events&unix.EPOLLOUT == 0) {
			return nil
		}
	}
	return refusef(ReasonBusy, "thread %d waits to write, or reads nothing", e.loop.thread)
}

// shutRead shuts reading down, if there is nothing to lose.
func (e *ending) shutRead() error {
	for _, q := range []uint{unix.SIOCOUTQ, unix.SIOCINQ} {
		n, err := unix.IoctlGetInt(e.socket, q)
		if err == nil && n != 0 {
			err = fmt.Errorf("%d bytes are in the socket", n)
		}
		if err != nil {
			return refusef(ReasonBusy, "looking at its queues: %w", err)
		}
	}
	woken, err := e.woken()
	if err != nil {
		return refusef(ReasonFailed, "asking whether thread %d is woken: %w", e.loop.thread, err)
	}
	if len(woken) > 0 {
		return refusef(ReasonBusy, "thread %d is woken", e.loop.thread)
	}
	shut := e.shut
	if shut == nil {
		shut = func(socket int) error { return unix.Shutdown(socket, unix.SHUT_RD) }
	}
	if err := shut(e.socket); err != nil {
		return refusef(ReasonBusy, "ending it: %w", err)
	}
	if woken, err = e.woken(); err != nil {
		return err
	}
	for _, i := range woken {
		if err := putBehind(e.epoll, e.signals[i], e.loop.signals[i]); err != nil {
			return err
		}
	}
	return nil
}

// woken returns which of the signals are there.
func (e *ending) woken() (which []int, err error) {
	if len(e.signals) == 0 {
		return nil, nil
	}
	all := make([]unix.PollFd, len(e.signals))
	for i, f := range e.signals {
		all[i] = unix.PollFd{Fd: int32(f), Events: unix.POLLIN}
	}
	for _, err = unix.Poll(all, 0); errors.Is(err, unix.EINTR); _, err = unix.Poll(all, 0) {
	}
	for i := range all {
		if all[i].Revents != 0 {
			which = append(which, i)
		}
	}
	return which, err
}

// putBehind has an epoll tell of a file that is ready after all others that are. At
// every moment it has the file: under its own number, or mine, or both.
func putBehind(epoll, mine int, w watched) error {
	if err := unix.Dup3(mine, w.number, unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("having its number: %w", err)
	}
	event := unix.EpollEvent{Events: w.events, Fd: int32(uint32(w.data)), Pad: int32(uint32(w.data >> 32))}
	for _, step := range []struct{ what, number int }{
		{unix.EPOLL_CTL_ADD, mine}, {unix.EPOLL_CTL_DEL, w.number}, {unix.EPOLL_CTL_ADD, w.number}, {unix.EPOLL_CTL_DEL, mine},
	} {
		if err := unix.EpollCtl(epoll, step.what, step.number, &event); err != nil {
			return fmt.Errorf("changing the order of events: %w", err)
		}
	}
	return nil
}
