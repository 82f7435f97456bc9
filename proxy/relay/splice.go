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

// splice passes all of src to dst, and then its end. Between bare TCP connections the bytes stay in
// the kernel. ended, if not nil, is set when src has ended. It blocks until then.
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

// spliceError distinguishes errors of writing from errors of reading, as far as the kernel does:
// writing to a connection that was reset is EPIPE.
func spliceError(err error) error {
	var op *net.OpError
	write := errors.As(err, &op) && op.Op == "write" || errors.Is(err, syscall.EPIPE)
	return &sideError{write: write, err: err}
}

// closeWrite ends the writing half, by FIN or TLS's close_notify. A connection that is gone already
// is no error.
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

// disconnect has the kernel reset a connection, by connect(2) to AF_UNSPEC. Unlike close it works
// while another process has a duplicate of the descriptor.
func disconnect(fd uintptr) {
	var unspecified unix.RawSockaddr
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&unspecified)), unsafe.Sizeof(unspecified))
}

// Reset ends a connection at once by RST, so that the peer sees a broken connection and not an end
// of the stream. It works below TLS, and where another process has a duplicate of the socket.
func Reset(c net.Conn) {
	under := c
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
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
		c.Close() // it has something to end too; TLS cannot send its close_notify any more
	}
}
