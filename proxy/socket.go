package proxy

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/relay"
)

// Fixed is the Destination of a listener that forwards everything to one address.
func Fixed(destination netip.AddrPort) func(*net.TCPConn) (netip.AddrPort, error) {
	return func(*net.TCPConn) (netip.AddrPort, error) { return destination, nil }
}

// OriginalDestination is the Destination of a listener to which connects are redirected: it
// asks the kernel (SO_ORIGINAL_DST).
func OriginalDestination(c *net.TCPConn) (netip.AddrPort, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	// An IPv4 connection to a dual-stack listener has an IPv4 original destination.
	v6 := addrPort(c.LocalAddr()).Addr().Is6()
	var addr netip.AddrPort
	var failed error
	err = raw.Control(func(fd uintptr) { addr, failed = originalDestination(int(fd), v6) })
	if err == nil {
		err = failed
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading its original destination: %w", err)
	}
	return addr, nil
}

// ip6OriginalDst is IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h.
const ip6OriginalDst = 80

// originalDestination returns the address to which the process of an accepted connection
// meant to connect. The redirecting BPF programs answer SO_ORIGINAL_DST themselves, so that a
// proxy without privileges needs no BPF map.
func originalDestination(fd int, v6 bool) (netip.AddrPort, error) {
	var storage unix.RawSockaddrInet6 // the larger of the two
	size := uint32(unsafe.Sizeof(storage))
	level, option := unix.SOL_IP, unix.SO_ORIGINAL_DST
	if v6 {
		level, option = unix.SOL_IPV6, ip6OriginalDst
	}
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&storage)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return netip.AddrPort{}, errno
	}
	port := func(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }
	switch storage.Family {
	case unix.AF_INET:
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&storage))
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), port(&sa.Port)), nil
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(storage.Addr).Unmap(), port(&storage.Port)), nil
	}
	return netip.AddrPort{}, fmt.Errorf("an address of family %d", storage.Family)
}

// addrPort returns a TCP address in comparable form, with IPv4-mapped addresses unmapped; the
// zero value for other addresses.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// sockState is the kernel's view of a connection.
type sockState struct {
	received, sent uint64        // bytes, without retransmissions
	quiet          time.Duration // since bytes were last received
	unsent         bool          // some bytes are not sent or not acknowledged
	unread         bool          // some bytes are not read
}

// kernelState returns a TCP connection's state, also below TLS; the zero value for anything
// else.
func kernelState(c net.Conn) (s sockState) {
	t := relay.TCP(c)
	if t == nil {
		return s
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return s
	}
	raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		// Retransmissions count as sent in tcp_info, and would count twice.
		s = sockState{
			received: info.Bytes_received, sent: info.Bytes_sent - info.Bytes_retrans,
			quiet:  time.Duration(info.Last_data_recv) * time.Millisecond,
			unsent: info.Unacked > 0 || info.Notsent_bytes > 0,
		}
		n, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ)
		s.unread = err == nil && n > 0
	})
	return s
}

// socketCookie returns the kernel's number of a TCP connection's socket (SO_COOKIE), which is
// unique until the next boot.
func socketCookie(c net.Conn) (cookie uint64, ok bool) {
	t := relay.TCP(c)
	if t == nil {
		return 0, false
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, false
	}
	e := raw.Control(func(fd uintptr) { cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
	return cookie, e == nil && err == nil
}
