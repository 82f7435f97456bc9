package daemon

import "golang.org/x/sys/unix"

// epollWaits are the system calls in which a thread waits for an epoll.
var epollWaits = []int{unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2}

// interrupted returns the system call in which a traced thread was stopped, and its result so
// far, a negative errno if it was interrupted. The kernel keeps the call's number in orig_rax,
// since rax has the result.
func interrupted(thread int) (call int, result int64, err error) {
	var r unix.PtraceRegs
	err = unix.PtraceGetRegs(thread, &r)
	return int(r.Orig_rax), int64(r.Rax), err
}
