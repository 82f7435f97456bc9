package reason

import (
	"errors"
	"syscall"
)

// IsNoDescriptors reports whether err says that the process or the system has
// no file descriptors, or no memory for sockets, left.
func IsNoDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}

// IsReset reports whether err says that the peer is gone without a farewell.
func IsReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ETIMEDOUT)
}
