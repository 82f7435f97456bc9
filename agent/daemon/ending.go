package daemon

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/discover"
)

// An ending makes a process see the end of one of its connections, so that it closes it in
// order and connects again.
//
// A connection that is reset from outside loses messages in three places: those that the
// process has assigned to it and not written yet, the rest of a message that is partly written,
// and what the kernel has buffered. None of them can be observed completely from outside. If
// the process itself reads the end of the stream, nothing in the kernel is lost, because its
// close lets the kernel deliver it. One loss remains: libzmq drops a message that its I/O
// thread is about to write, or has partly written. So the end must come at a moment at which
// the thread has none:
//
//   - The thread is stopped (ptrace) while it waits in epoll with nothing to do: the kernel
//     reports that its call was interrupted (EINTR), which happens only if no event was ready.
//     libzmq then calls again, as it must.
//   - It does not wait for room to write, which it would with part of a message in hand: it may
//     have fallen asleep because the socket was full, and the socket may be empty by now.
//   - Nothing is in the socket, and no other thread has woken this one (its eventfds).
//   - Now reading is shut down (shutdown(SHUT_RD) on the socket itself, by way of pidfd_getfd).
//     If other threads have woken it meanwhile, their eventfds are removed from its epoll and
//     added again: events are reported in the order in which they became ready, so it reads the
//     end of the stream before it learns of a new message.
//   - The thread continues. Messages that were queued meanwhile go out on the next connection.
//
// If the agent is killed at any moment in between, the kernel lets the thread continue.
//
// The descriptors are those of the thread that runs it, which has a descriptor table of its
// own.
type ending struct {
	proc  *discover.ProcFS
	pid   int
	inode uint32
	loop  loop

	pidfd, socket, epoll int
	signals              []int // duplicates of loop.signals, in the same order
	base                 int   // above every descriptor number in loop.signals

	shut func(socket int) error // for tests; nil shuts reading down
}

// stopFor is how long a thread may take to stop. One that sleeps stops at once.
const stopFor = 20 * time.Millisecond

// onThread runs f on a new thread that ends with it. Its end closes what f opened in a
// descriptor table of its own and detaches what it traced (ptrace relations belong to threads),
// whatever happened in f.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the runtime ends the thread with the goroutine
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread() // the main thread of a process cannot end by itself
			done <- onThread(f)
			return
		}
		done <- f()
	}()
	return <-done
}

// run ends the connection. If it returns a [refusal], nothing was changed; after any other
// error the process has received the end, but the order of events could not be established.
//
// The thread gets a descriptor table of its own, so that putBehind can give descriptors the
// numbers that they have in the other process.
func (e *ending) run() error {
	return onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return refusef(ReasonFailed, "having files apart: %w", err)
		}
		if err := e.open(); err != nil {
			return err
		}
		// From here on the process's thread stands still. Everything up to detach must be
		// quick.
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

// open duplicates the process's descriptors. All of this happens before the thread is stopped.
func (e *ending) open() (err error) {
	for _, s := range e.loop.signals {
		e.base = max(e.base, s.number+1)
	}
	// A pidfd opened in this thread: the closer's belongs to another descriptor table.
	if e.pidfd, err = unix.PidfdOpen(e.pid, 0); err != nil {
		return refusef(ReasonBusy, "process %d: %w", e.pid, err)
	}
	// The number may have been closed and reused since findLoop; the inode tells.
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

// file duplicates a descriptor of the process, at a number above all those of its signals, so
// that it cannot be overwritten by putBehind.
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

// denied classifies an error of ptrace or pidfd_getfd: rights that are missing stay missing, a
// process or file that is gone is looked at again.
func denied(err error) Reason {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		return ReasonForbidden
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EBADF):
		return ReasonBusy
	}
	return ReasonFailed
}

// stop stops the event loop's thread and checks that it was idle. detach, which is never nil,
// lets the thread continue. PTRACE_SEIZE and INTERRUPT are used because they send no signal
// that the process could see.
func (e *ending) stop() (detach func() error, err error) {
	thread, signal := e.loop.thread, 0
	if err := unix.PtraceSeize(thread); err != nil {
		return func() error { return nil }, refusef(denied(err), "stopping thread %d: %w", thread, err)
	}
	stopped := false
	detach = func() error {
		if !stopped {
			return nil // it may still stop; the end of this tracing thread lets it continue
		}
		_, _, no := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(thread), 0, uintptr(signal), 0, 0)
		if no != 0 && no != unix.ESRCH {
			return fmt.Errorf("resuming thread %d: %w", thread, no)
		}
		return nil
	}
	if err := unix.PtraceInterrupt(thread); err != nil {
		return detach, refusef(ReasonBusy, "stopping thread %d: %w", thread, err)
	}
	// WNOHANG with a deadline: a thread in an uninterruptible sleep would block a plain wait.
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
				signal = int(status.StopSignal()) // delivered by the detach, as if nobody had traced
				return detach, refusef(ReasonBusy, "thread %d is to have a signal", thread)
			}
			return detach, e.waits()
		case time.Now().After(end):
			return detach, refusef(ReasonBusy, "thread %d does not stop", thread)
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// waits returns nil if the stopped thread was waiting in epoll and no event was ready.
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

// writes returns nil if the stopped thread is not waiting for room to write. libzmq registers
// for EPOLLOUT only then. A process that always registers for both with edge-triggered
// notification (EPOLLET), as Go's runtime does, gives no such sign and is accepted.
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

// shutRead shuts reading down if nothing can be lost. Between the check of the eventfds and the
// shutdown another thread may signal; those signals are reordered afterwards.
func (e *ending) shutRead() error {
	// Unacknowledged bytes count as queued: after a close they might never be delivered.
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
	// From here on errors are not refusals: the process will read the end in any case.
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

// woken returns the indexes of the eventfds that are readable: other threads have sent
// commands, such as a message to write.
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

// putBehind moves a ready file to the end of an epoll's list of ready files. An epoll
// identifies a registration by file and number, so removing and adding it again needs the file
// under the number that it has in the process, w.number. The file is registered at every
// moment, under its own number, under mine, or both, so no event is lost while it moves.
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
