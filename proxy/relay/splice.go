package relay

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
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
