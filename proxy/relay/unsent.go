package relay

import (
	"net"

	"golang.org/x/sys/unix"
)

// Unsent returns how many bytes that were written to a connection, bare or of TLS, have
// yet to leave this host; Unacked, how many have yet to arrive. Of a connection that has
// ended it is 0.
func Unsent(c net.Conn) int { return queuedOut(c, unix.SIOCOUTQNSD) }

// Unacked is likewise.
func Unacked(c net.Conn) int { return queuedOut(c, unix.SIOCOUTQ) }

func queuedOut(c net.Conn, request uint) (n int) {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0
	}
	err = raw.Control(func(fd uintptr) {
		if n, err = unix.IoctlGetInt(int(fd), request); err != nil {
			n = 0
		}
	})
	if err != nil {
		return 0
	}
	return n
}
