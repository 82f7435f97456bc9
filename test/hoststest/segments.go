package hoststest

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/hosts"
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

// SetSegments bounds the TCP segments of new connections between hosts to size bytes including
// TCP options (12 of them time stamps), and sends one segment in each packet instead of up to
// 64 KiB. The kernel allows no less than 48; see WriteSegments for less. 0 removes the bound.
func SetSegments(n *hosts.Net, size int) error {
	if size != 0 && (size < 48 || size > 65495) {
		return fmt.Errorf("segments of %d bytes: must be 48 to 65495, or 0", size)
	}
	for _, h := range n.Hosts() {
		if err := setSegments(h, size); err != nil {
			return err
		}
	}
	return nil
}

// setSegments makes the host ask its peers for small segments, by its routes, and send its own
// one by one.
func setSegments(h *hosts.Host, size int) error {
	nl, uplink, err := linkOf(h, "eth0")
	if err != nil {
		return err
	}
	defer nl.Close()
	routes, err := nl.RouteList(uplink, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("host %s: its routes: %w", h.Name, err)
	}
	for _, route := range routes {
		// Only routes to other hosts.
		if route.Dst == nil || route.Dst.IP.IsMulticast() || route.Dst.IP.IsLinkLocalUnicast() {
			continue
		}
		route.AdvMSS = size
		if err := nl.RouteReplace(&route); err != nil {
			return fmt.Errorf("host %s: route %s with segments of %d bytes: %w", h.Name, route.Dst, size, err)
		}
	}
	segments := 1
	if size == 0 {
		segments = 65535
	}
	if err := nl.LinkSetGSOMaxSegs(uplink, segments); err != nil {
		return fmt.Errorf("host %s: %d segments a packet: %w", h.Name, segments, err)
	}
	return nil
}

// SetLoopbackPackets lets TCP pass packets of up to size bytes, including headers, to the
// host's loopback interface ("BIG TCP" above 65,536), on connections made from now on.
func SetLoopbackPackets(h *hosts.Host, size int) error {
	nl, lo, err := linkOf(h, "lo")
	if err != nil {
		return err
	}
	defer nl.Close()
	if err := errors.Join(nl.LinkSetGSOMaxSize(lo, size), nl.LinkSetGSOIPv4MaxSize(lo, size)); err != nil {
		return fmt.Errorf("host %s: packets of %d bytes on its loopback interface (IPv6 since Linux 5.19, IPv4 since 6.3): %w", h.Name, size, err)
	}
	return nil
}

// linkOf returns an interface of a host, and a handle in the host's namespace, which the caller
// closes.
func linkOf(h *hosts.Host, name string) (*netlink.Handle, netlink.Link, error) {
	nl, err := netlink.NewHandleAt(h.Handle())
	if err != nil {
		return nil, nil, fmt.Errorf("host %s: netlink: %w", h.Name, err)
	}
	link, err := nl.LinkByName(name)
	if err != nil {
		nl.Close()
		return nil, nil, fmt.Errorf("host %s: %s: %w", h.Name, name, err)
	}
	return nl, link, nil
}
