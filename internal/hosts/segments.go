package hosts

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// WriteSegments writes b in TCP segments of size bytes each (the last may be shorter), down to
// a single byte. Each is marked as the end of a record (MSG_EOR), so that the kernel joins none
// of them, neither while they are queued nor when they are retransmitted. It is for tests of
// parsers that must accept any segmentation.
func WriteSegments(conn *net.TCPConn, b []byte, size int) error {
	if size < 1 {
		return fmt.Errorf("segments of %d bytes: must be 1 or more", size)
	}
	if err := conn.SetNoDelay(true); err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	for len(b) > 0 {
		piece := b[:min(size, len(b))]
		var sent int
		var failed error
		err := raw.Write(func(fd uintptr) bool {
			sent, failed = unix.SendmsgN(int(fd), piece, nil, nil, unix.MSG_EOR|unix.MSG_NOSIGNAL)
			if errors.Is(failed, unix.EINTR) {
				sent, failed = 0, nil // nothing was sent: the loop tries again
			}
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err = errors.Join(err, failed); err != nil {
			return fmt.Errorf("writing a segment of %d bytes: %w", len(piece), err)
		}
		b = b[sent:]
	}
	return nil
}
