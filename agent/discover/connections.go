package discover

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Connection is the state of a TCP connection as the kernel of its local end sees it.
type Connection struct {
	Unacked    uint32        // segments sent and not acknowledged
	Unsent     uint64        // bytes written and not sent yet
	Retries    uint8         // retransmissions of the oldest unacknowledged segment
	ZeroWindow bool          // data is waiting and the receiver's window is closed
	Silent     time.Duration // since the last ack from the peer

	Established bool
	Cookie      uint64        // SO_COOKIE, unique as long as the host runs
	Inode       uint32        // of the socket as a file; 0: no process holds it any more
	Received    uint64        // bytes, since the connection was made
	Unread      uint32        // bytes in the receive queue, which the process has not read
	Quiet       time.Duration // since data was last sent or received
	Acked       uint64        // bytes that the peer has acknowledged
	RTT         time.Duration // smoothed
	// Busy is for how long the connection has had bytes to send or on their way, but for the time
	// in which the receiver's window kept them back.
	Busy time.Duration
	// Rate is the bytes per second that have arrived since the connection last sent as fast as its
	// link took them, at the best.
	Rate uint64
}

// Ends identify a connection within a network namespace. IPv4-mapped addresses are unmapped.
type Ends struct{ Local, Peer netip.AddrPort }

// Connections returns the TCP connections of a network namespace, given by its file, such as
// /proc/PID/ns/net. It needs CAP_SYS_ADMIN for a namespace other than the caller's. The dump
// covers all states and costs time in proportion to the namespace's sockets. A dump that was
// interrupted by changes is used as far as it goes.
func Connections(file string) (map[Ends]Connection, error) {
	ns, err := netns.GetFromPath(file)
	if err != nil {
		return nil, fmt.Errorf("opening network namespace %s: %w", file, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("entering network namespace %s (needs CAP_SYS_ADMIN): %w", file, err)
	}
	defer h.Close()
	all := map[Ends]Connection{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := h.SocketDiagTCPInfo(family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("reading the sockets of %s: %w", file, err)
		}
		for _, s := range list {
			if s.InetDiagMsg == nil || s.TCPInfo == nil {
				continue
			}
			id := s.InetDiagMsg.ID
			ends := Ends{address(id.Source, id.SourcePort), address(id.Destination, id.DestinationPort)}
			c := connectionOf(s.TCPInfo)
			c.Established, c.Unread, c.Inode = s.InetDiagMsg.State == netlink.TCP_ESTABLISHED, s.InetDiagMsg.RQueue, s.InetDiagMsg.INode
			c.Cookie = uint64(id.Cookie[0]) | uint64(id.Cookie[1])<<32
			all[ends] = c
		}
	}
	return all, nil
}

// connectionOf translates struct tcp_info, whose times are in milliseconds.
func connectionOf(i *netlink.TCPInfo) Connection {
	return Connection{
		Unacked: i.Unacked, Unsent: uint64(i.Notsent_bytes), Retries: max(i.Retransmits, i.Backoff),
		// Probes of a closed window are sent while nothing else is on its way.
		ZeroWindow: i.Unacked == 0 && i.Notsent_bytes > 0 && (i.Probes > 0 || i.Snd_wnd == 0),
		Silent:     time.Duration(i.Last_ack_recv) * time.Millisecond,
		Received:   i.Bytes_received, Quiet: time.Duration(min(i.Last_data_sent, i.Last_data_recv)) * time.Millisecond,
		RTT:   time.Duration(i.Rtt) * time.Microsecond,
		Acked: i.Bytes_acked, Busy: time.Duration(i.Busy_time-i.Rwnd_limited) * time.Microsecond, Rate: i.Delivery_rate,
	}
}

func address(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}
