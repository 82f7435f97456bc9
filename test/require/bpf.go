package require

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BPF needs the right to load a BPF program for a cgroup, which it proves by
// loading one that lets every packet pass.
func BPF(t testing.TB) {
	t.Helper()
	if err := loadBPF(); err != nil {
		Missing(t, "needs BPF: %v (run as root, or with CAP_BPF and CAP_NET_ADMIN)", err)
	}
}

// loadBPF calls bpf(2) itself: the library for it would be in every test that asks for root.
func loadBPF() error {
	program := [2]uint64{
		1<<32 | unix.BPF_ALU64 | unix.BPF_MOV, // r0 = 1
		unix.BPF_JMP | unix.BPF_EXIT,
	}
	license := []byte("Apache-2.0\x00")
	// union bpf_attr for BPF_PROG_LOAD
	attr := struct {
		kind, length      uint32
		program, license  uint64
		logLevel, logSize uint32
		log               uint64
		version, flags    uint32
		name              [16]byte
		device, attach    uint32
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_SKB, length: uint32(len(program)),
		program: uint64(uintptr(unsafe.Pointer(&program))), license: uint64(uintptr(unsafe.Pointer(&license[0]))),
		attach: unix.BPF_CGROUP_INET_EGRESS,
	}
	copy(attr.name[:], "psd_require")
	fd, errno := uintptr(0), unix.EAGAIN // which it is when a signal interrupts the verifier
	for errno == unix.EAGAIN {
		fd, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	}
	runtime.KeepAlive(&program)
	runtime.KeepAlive(license)
	if errno != 0 {
		return fmt.Errorf("loading a cgroup_skb program: %w", errno)
	}
	return unix.Close(int(fd))
}
