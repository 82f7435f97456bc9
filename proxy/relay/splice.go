package relay

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// splice passes all of src to dst, and then its end. Between bare TCP
// connections the bytes stay in the kernel. ended is set when src has ended.
func splice(dst, src net.Conn, flow *Flow, ended *atomic.Bool) error {
	n, err := io.Copy(dst, src)
	flow.in.Add(uint64(n))
	flow.out.Add(uint64(n))
	if err != nil {
		return spliceError(err)
	}
	if ended != nil {
		ended.Store(true)
	}
	return closeWrite(dst)
}

// spliceError tells an error of reading from one of writing, as far as the
// kernel does: writing to a connection that was reset is EPIPE.
func spliceError(err error) error {
	var op *net.OpError
	write := errors.As(err, &op) && op.Op == "write" || errors.Is(err, syscall.EPIPE)
	return &sideError{write: write, err: err}
}

// closeWrite passes the end of a stream on, by FIN or TLS's close_notify.
func closeWrite(c net.Conn) error {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return c.Close()
	}
	if err := half.CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, net.ErrClosed) {
		return &sideError{write: true, err: err}
	}
	return nil
}

// disconnect has the kernel reset a connection (connect(2) to AF_UNSPEC).
func disconnect(fd uintptr) {
	var unspecified unix.RawSockaddr
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&unspecified)), unsafe.Sizeof(unspecified))
}

// Reset ends a connection at once, so that the peer sees it broken and not
// ended, also where another process has a duplicate of the socket.
func Reset(c net.Conn) {
	under := c
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS, or watched by package jobs
		under = t.NetConn()
	}
	if t, ok := under.(*net.TCPConn); ok {
		t.SetLinger(0)
		if raw, err := t.SyscallConn(); err == nil {
			_ = raw.Control(disconnect) // else it is closed already
		}
	}
	under.Close()
	if under != c {
		c.Close() // it has something to end, too; with TLS there is nobody to say goodbye to
	}
}
