package keep

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Position is how far the two streams of a socket are, in bytes since the
// connection was made, as the kernel counts them, whichever process read and wrote them.
type Position struct {
	Consumed uint64 // taken out of the queue of what came
	Written  uint64 // put into the queue of what goes
}

// figures are the kernel's counters at one moment.
type figures struct {
	state           uint8
	acked, received uint64 // of struct tcp_info: SYN and FIN count
	outq, inq       uint64 // SIOCOUTQ, SIOCINQ: a FIN of ours counts, one of the peer's does not
}

// States of include/net/tcp_states.h.
const (
	tcpEstablished = 1
	tcpFinWait1    = 4
	tcpFinWait2    = 5
	tcpTimeWait    = 6
	tcpClose       = 7
	tcpCloseWait   = 8
	tcpLastAck     = 9
	tcpClosing     = 11
)

var errReset = errors.New("the connection was reset")

// position takes SYN and FIN off. synAcked is how many of the bytes acknowledged
// were no data when nothing had been written yet.
func (f figures) position(synAcked uint64) (p Position, err error) {
	var finSent, finCame uint64
	switch f.state {
	case tcpEstablished:
	case tcpFinWait1, tcpFinWait2:
		finSent = 1
	case tcpCloseWait:
		finCame = 1
	case tcpLastAck, tcpClosing, tcpTimeWait, tcpClose:
		// Closed is what follows on both ends, and on a reset, of which the next
		// read or write shows.
		finSent, finCame = 1, 1
	default:
		return p, fmt.Errorf("a socket in state %d", f.state)
	}
	if f.acked+f.outq < synAcked+finSent || f.received < f.inq+finCame {
		return p, errReset
	}
	p.Written = f.acked + f.outq - synAcked - finSent
	p.Consumed = f.received - f.inq - finCame
	return p, nil
}

// positionTries is how often figures are read until they are of one moment.
const positionTries = 100

// ReadPosition asks the kernel. syn is what [SYN] returned when the connection was
// new. An error means that the connection was reset, or that its position
// cannot be determined.
func ReadPosition(c *net.TCPConn, syn uint64) (p Position, err error) {
	f, err := readFigures(c)
	if err != nil {
		return p, err
	}
	return f.position(syn)
}

// SYN returns how many bytes the kernel counts as acknowledged of a new connection
// to which nothing has been written.
func SYN(c *net.TCPConn) (uint64, error) {
	f, err := readFigures(c)
	return f.acked + f.outq, err
}

// readFigures reads the kernel's counters of a connection. They are read one after the
// other while bytes may flow, so they are read again until they agree.
func readFigures(c *net.TCPConn) (f figures, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return f, fmt.Errorf("reading a connection's position: %w", err)
	}
	failed := raw.Control(func(fd uintptr) {
		for range positionTries {
			var stable bool
			if f, stable, err = figuresOf(int(fd)); err != nil || stable {
				return
			}
		}
		err = errors.New("it does not quiesce")
	})
	if err := errors.Join(failed, err); err != nil {
		return f, fmt.Errorf("reading a connection's position: %w", err)
	}
	return f, nil
}

// figuresOf reads the figures; stable: nothing has changed meanwhile.
func figuresOf(fd int) (f figures, stable bool, err error) {
	before, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return f, false, err
	}
	outq, err1 := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	inq, err2 := unix.IoctlGetInt(fd, unix.SIOCINQ)
	after, err3 := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err := errors.Join(err1, err2, err3); err != nil {
		return f, false, err
	}
	f = figures{after.State, after.Bytes_acked, after.Bytes_received, uint64(outq), uint64(inq)}
	stable = before.State == after.State && before.Bytes_acked == after.Bytes_acked && before.Bytes_received == after.Bytes_received
	return f, stable, nil
}
