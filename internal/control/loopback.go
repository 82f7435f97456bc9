package control

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tcpEstablished is TCP_ESTABLISHED.
const tcpEstablished = 1

// loopbackUser returns the user of the process at the other end of a connection over loopback.
//
// The kernel knows the user of a socket that a process holds; a socket that was closed has user
// 0 and no inode, and must not be taken for root's. The state of our own connection is checked
// last: while it is established, the socket that was found is the one at its other end, and not
// a later one of another user at the same port.
func loopbackUser(c *net.TCPConn) (int, error) {
	far, near := c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr)
	if !far.IP.IsLoopback() || !near.IP.IsLoopback() {
		return -1, fmt.Errorf("%s is not on loopback", far)
	}
	// Asked for from the peer's side: its local address is our remote one.
	s, err := netlink.SocketGet(far, near)
	if err != nil {
		return -1, fmt.Errorf("asking the kernel for the user at %s: %w", far, err)
	}
	// The kernel may answer with a listener at that address if the connection is gone, hence
	// the comparison of both addresses.
	if s.State != tcpEstablished || s.INode == 0 || !s.ID.Source.Equal(far.IP) || !s.ID.Destination.Equal(near.IP) {
		return -1, fmt.Errorf("the connection from %s is closed", far)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err = errors.Join(err, failed); err != nil {
		return -1, fmt.Errorf("reading the state of the connection from %s: %w", far, err)
	}
	if info.State != tcpEstablished {
		return -1, fmt.Errorf("the connection from %s is closed", far)
	}
	return int(s.UID), nil
}
