// This part asks the kernel about the TCP sockets of a network namespace: which
// listen, and in which cgroup each was made ([ListeningSockets], for the agent's
// listeners), and the state of connections: unacknowledged, unsent and retransmitted
// bytes ([Connections], for the agent where a job stands still). To be in the
// namespace, or to enter it, is all the privilege that is needed.

package discover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A ListeningSocket is a TCP socket in state LISTEN.
type ListeningSocket struct {
	Address netip.AddrPort // the unspecified address takes connections to every local one
	Cgroup  uint64         // kernel number of the cgroup v2 of the process that made it
	Cookie  uint64         // SO_COOKIE, unique as long as the host runs
}

// ErrNoSocketCgroups says that the kernel does not report the cgroups of sockets: it is older
// than 5.8, or was built without them.
var ErrNoSocketCgroups = errors.New("the kernel does not report the cgroups of sockets (since 5.8, with CONFIG_SOCK_CGROUP_DATA)")

// From linux/inet_diag.h: the sizes of struct inet_diag_req_v2 and of struct inet_diag_msg,
// which attributes follow.
const (
	requestSize = 56
	messageSize = 72
	cgroupID    = 21 // INET_DIAG_CGROUP_ID
	listenState = 10 // TCP_LISTEN
)

// request is an inet_diag_req_v2 for the listening sockets of a family at a port, in the form
// that package nl serializes.
type request struct {
	family byte
	port   uint16
}

func (r request) Len() int { return requestSize }

func (r request) Serialize() []byte {
	b := make([]byte, requestSize)
	b[0], b[1] = r.family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], 1<<listenState)
	binary.BigEndian.PutUint16(b[8:], r.port)
	for i := 48; i < requestSize; i++ {
		b[i] = 0xff // INET_DIAG_NOCOOKIE
	}
	return b
}

// ListeningSockets returns the TCP sockets that listen at a port, IPv4 and IPv6, in the network
// namespace of the calling thread. The kernel's filter takes port 0 for any port.
func ListeningSockets(port uint16) (all []ListeningSocket, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		q := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		q.AddData(request{family, port})
		messages, err := q.Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil {
			return nil, fmt.Errorf("reading the listening sockets at port %d: %w", port, err)
		}
		for _, m := range messages {
			l, err := parse(m)
			if err != nil {
				return nil, fmt.Errorf("reading the listening sockets at port %d: %w", port, err)
			}
			if l.Address.Port() == port {
				all = append(all, l)
			}
		}
	}
	return all, nil
}

// parse decodes one inet_diag_msg. Its fixed part has family, state, timer and retransmissions
// in one byte each, then both ports and addresses in network byte order, and the cookie.
func parse(m []byte) (l ListeningSocket, err error) {
	if len(m) < messageSize {
		return l, fmt.Errorf("the kernel's answer has %d bytes, want %d", len(m), messageSize)
	}
	ip := m[8:12]
	if m[0] == unix.AF_INET6 {
		ip = m[8:24]
	}
	address, _ := netip.AddrFromSlice(ip)
	l.Address = netip.AddrPortFrom(address.Unmap(), binary.BigEndian.Uint16(m[4:]))
	// The cookie is two words in host byte order, the lower one first.
	l.Cookie = uint64(binary.NativeEndian.Uint32(m[44:])) | uint64(binary.NativeEndian.Uint32(m[48:]))<<32
	// The last attribute may lack its padding to four bytes, and ParseRouteAttr panics without
	// it.
	rest := append(slices.Clone(m[messageSize:]), 0, 0, 0)
	attributes, err := nl.ParseRouteAttr(rest[:len(rest)&^3])
	if err != nil {
		return l, fmt.Errorf("reading the kernel's answer: %w", err)
	}
	for _, a := range attributes {
		if a.Attr.Type == cgroupID && len(a.Value) >= 8 {
			l.Cgroup = binary.NativeEndian.Uint64(a.Value)
			return l, nil
		}
	}
	return l, ErrNoSocketCgroups
}
