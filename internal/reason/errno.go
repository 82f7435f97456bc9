package reason

import (
	"errors"
	"syscall"
)

// IsNoDescriptors reports whether err means that the process or the system has no file
// descriptors, or no memory for sockets, left. That is a condition of this host, and says
// nothing about the peer.
func IsNoDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}

// IsReset reports whether err means that the peer is gone without having ended the stream.
func IsReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ETIMEDOUT)
}
