package bpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// pollInterval bounds how long a batch may wait in the ring buffer when too few follow to wake
// the reader. Each wakeup costs tens of microseconds.
const pollInterval = 100 * time.Millisecond

// ring reads a BPF ring buffer in place: its pages are mapped, and a callback gets the kernel's
// own memory. The data pages are mapped twice in a row, so a record never wraps around.
//
// Only one goroutine may read. The kernel writes producer and the length word of each record,
// this process writes consumer, and nothing else is shared; atomic accesses give the ordering
// that the kernel's protocol requires.
type ring struct {
	consumer *atomic.Uint64 // bytes read so far; the kernel reuses what lies before
	producer *atomic.Uint64 // bytes reserved so far
	data     []byte         // 2 * size bytes
	mask     uint64         // size - 1
	control  []byte         // the consumer's page
	pages    []byte         // the producer's page and the data
	file     *os.File       // the map's descriptor, for the Go runtime to poll
	conn     syscall.RawConn
}

// The header of a record, as in the kernel's UAPI: a length word with two flags, and an offset
// that is not used here.
const (
	ringBusy    = 1 << 31
	ringDiscard = 1 << 30
	ringHeader  = 8
)

// openRing maps the ring buffer. The consumer's page is writable, the producer's page and the
// data are not.
func openRing(m *ebpf.Map, size int) (_ *ring, err error) {
	r := &ring{mask: uint64(size - 1)}
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
	if err = r.pollable(m.FD()); err != nil {
		return nil, fmt.Errorf("waiting for the ring buffer: %w", err)
	}
	return r, nil
}

// pollable lets the Go runtime wait for the map as it does for a socket. A thread that waited
// by itself, in a system call of 100 ms, would keep the runtime's monitor awake for much of
// that time, which costs more CPU time than all reading.
func (r *ring) pollable(fd int) error {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	r.file = os.NewFile(uintptr(fd), "ring buffer")
	if r.conn, err = r.file.SyscallConn(); err != nil {
		return err
	}
	return r.file.SetReadDeadline(time.Time{}) // fails if the runtime cannot poll the file
}

// drain passes all batches that are in the ring buffer now to each, frees them one by one, and
// reports whether there were any. Batches that are written meanwhile are left for the next
// call; otherwise a busy job would never let it return.
func (r *ring) drain(each func(batch []byte)) bool {
	from, written := r.consumer.Load(), r.producer.Load()
	read := from
	for read < written {
		at := read & r.mask
		length := (*atomic.Uint32)(unsafe.Pointer(&r.data[at])).Load()
		if length&ringBusy != 0 {
			break // not committed yet; those behind it must wait
		}
		size := uint64(length &^ (ringBusy | ringDiscard))
		if length&ringDiscard == 0 {
			each(r.data[at+ringHeader : at+ringHeader+size])
		}
		read += (size + ringHeader + 7) &^ 7
		// Freed at once rather than at the end: a writer may be short of room.
		r.consumer.Store(read)
	}
	return read > from
}

// oldest returns the time of the first batch that is not freed yet, by the kernel's monotonic
// clock. It may run beside drain: if the batch was freed meanwhile, its memory may have been
// overwritten, and ok is false.
func (r *ring) oldest() (nanos uint64, ok bool) {
	read := r.consumer.Load()
	if read >= r.producer.Load() {
		return 0, false
	}
	at := read & r.mask
	if (*atomic.Uint32)(unsafe.Pointer(&r.data[at])).Load()&(ringBusy|ringDiscard) != 0 {
		return 0, false
	}
	nanos = (*atomic.Uint64)(unsafe.Pointer(&r.data[at+ringHeader+batchTime])).Load()
	return nanos, r.consumer.Load() == read
}

// wait returns when the kernel wakes the reader, after pollInterval, or when ctx ends.
func (r *ring) wait(ctx context.Context) error {
	if err := r.file.SetReadDeadline(time.Now().Add(pollInterval)); err != nil {
		return fmt.Errorf("waiting for the ring buffer: %w", err)
	}
	// A deadline in the past interrupts the wait.
	stop := context.AfterFunc(ctx, func() { _ = r.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	asked := false
	err := r.conn.Read(func(uintptr) bool {
		defer func() { asked = true }()
		return asked // called at once, and again when the kernel has woken it
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("waiting for the ring buffer: %w", err)
	}
	return ctx.Err()
}

func (r *ring) close() error {
	var failed error
	if r.file != nil {
		failed = r.file.Close()
	}
	for _, m := range [][]byte{r.control, r.pages} {
		if m != nil {
			failed = errors.Join(failed, unix.Munmap(m))
		}
	}
	r.file, r.control, r.pages = nil, nil, nil
	return failed
}
