// Package sock does to connections what package net cannot.
package sock

import (
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
