package bpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// pollInterval is how long a batch may lie in the ring buffer when too little
// comes to wake the reader. Each time costs tens of microseconds.
const pollInterval = 100 * time.Millisecond

// ring reads a BPF ring buffer in place: its pages are mapped, and what a
// callback gets to see is the kernel's own copy. (The data pages are mapped
// twice in a row, so that a record never wraps.)
type ring struct {
	consumer *atomic.Uint64 // bytes read; the kernel looks at it
	producer *atomic.Uint64 // bytes written
	data     []byte         // 2 * size
	mask     uint64
	control  []byte // the consumer's page
	pages    []byte // the producer's page and the data
	epoll    int
	wake     int // an eventfd, written when a context ends
}

// Bits of a record's length word, as in the kernel's UAPI.
const (
	ringBusy    = 1 << 31
	ringDiscard = 1 << 30
	ringHeader  = 8
)

func openRing(m *ebpf.Map, size int) (_ *ring, err error) {
	r := &ring{mask: uint64(size - 1), epoll: -1, wake: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	page := os.Getpagesize()
	if r.control, err = unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("mapping the ring buffer's read position: %w", err)
	}
	if r.pages, err = unix.Mmap(m.FD(), int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("mapping the ring buffer: %w", err)
	}
	r.consumer = (*atomic.Uint64)(unsafe.Pointer(&r.control[0]))
	r.producer = (*atomic.Uint64)(unsafe.Pointer(&r.pages[0]))
	r.data = r.pages[page:]
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	for _, fd := range []int{m.FD(), r.wake} {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
			return nil, fmt.Errorf("epoll: %w", err)
		}
	}
	return r, nil
}

// drain hands all batches that lie in the ring to each and frees them, one
// after the other.
func (r *ring) drain(each func(batch []byte)) (batches int) {
	read := r.consumer.Load()
	for {
		written := r.producer.Load()
		if read >= written {
			return batches
		}
		at := read & r.mask
		length := (*atomic.Uint32)(unsafe.Pointer(&r.data[at])).Load()
		if length&ringBusy != 0 {
			return batches // still being written; what follows must wait for it
		}
		size := uint64(length &^ (ringBusy | ringDiscard))
		if length&ringDiscard == 0 {
			each(r.data[at+ringHeader : at+ringHeader+size])
			batches++
		}
		read += (size + ringHeader + 7) &^ 7
		r.consumer.Store(read)
	}
}

// wait returns when the kernel rings, after pollInterval, or when ctx ends.
func (r *ring) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		one := [8]byte{1}
		_, _ = unix.Write(r.wake, one[:])
	})
	defer stop()
	var events [2]unix.EpollEvent
	_, err := unix.EpollWait(r.epoll, events[:], int(pollInterval.Milliseconds()))
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("waiting for the ring buffer: %w", err)
	}
	return ctx.Err()
}

func (r *ring) close() error {
	var failed error
	for _, fd := range []int{r.epoll, r.wake} {
		if fd >= 0 {
			failed = errors.Join(failed, unix.Close(fd))
		}
	}
	for _, m := range [][]byte{r.control, r.pages} {
		if m != nil {
			failed = errors.Join(failed, unix.Munmap(m))
		}
	}
	r.epoll, r.wake, r.control, r.pages = -1, -1, nil, nil
	return failed
}
