package daemon

import "golang.org/x/sys/unix"

// epollWaits are the system calls in which a thread waits for an epoll.
var epollWaits = []int{unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2}

// interrupted returns the system call in which a traced thread was stopped (x8), and its result
// so far (x0), a negative errno if it was interrupted.
func interrupted(thread int) (call int, result int64, err error) {
	var r unix.PtraceRegsArm64
	err = unix.PtraceGetRegSetArm64(thread, ntPRStatus, &r)
	return int(r.Regs[8]), int64(r.Regs[0]), err
}

const ntPRStatus = 1 // NT_PRSTATUS of linux/elf.h
