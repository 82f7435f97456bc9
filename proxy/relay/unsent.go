package relay

import (
	"net"

	"golang.org/x/sys/unix"
)

// TCP returns the TCP connection below others, such as TLS; nil where there is none.
func TCP(c net.Conn) *net.TCPConn {
	for {
		under, wraps := c.(interface{ NetConn() net.Conn })
		if !wraps {
			t, _ := c.(*net.TCPConn)
			return t
		}
		c = under.NetConn()
	}
}

// Unsent returns the number of written bytes that have yet to leave this host, also below TLS; 0
// for a connection that has ended.
func Unsent(c net.Conn) int { return queuedOut(c, unix.SIOCOUTQNSD) }

// Unacked returns the number of written bytes that the peer's kernel has not acknowledged yet;
// otherwise it is like Unsent.
func Unacked(c net.Conn) int { return queuedOut(c, unix.SIOCOUTQ) }

// queuedOut returns the socket's answer to a SIOCOUTQ request, 0 where it has none.
func queuedOut(c net.Conn, request uint) (n int) {
	t := TCP(c)
	if t == nil {
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
