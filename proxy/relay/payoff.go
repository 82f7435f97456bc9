package relay

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/payoff"
)

// pathSampler asks the kernel what a byte costs on the way to the other proxy.
type pathSampler struct {
	conn net.Conn
	last payoff.Sample
}

// sample takes a sample of the link for the meter's path, if it is time for one.
func (e *encoder) sample(now time.Time) {
	if !e.payoff.Path.Wants(now) {
		return
	}
	s, ok := readSample(e.far.conn)
	if !ok {
		return
	}
	s.Messages = e.flow.messages.Load()
	e.payoff.Path.Add(e.far.last, s)
	e.far.last = s
}

// readSample is a sample of a TCP connection, also below TLS.
func readSample(c net.Conn) (s payoff.Sample, ok bool) {
	info := tcpInfo(c)
	if info == nil {
		return s, false
	}
	return payoff.Sample{
		RTT: time.Duration(info.Rtt) * time.Microsecond, MinRTT: time.Duration(info.Min_rtt) * time.Microsecond,
		DeliveryRate: info.Delivery_rate, BytesSent: info.Bytes_sent - info.Bytes_retrans,
	}, true
}

// Established reports whether neither end of a TCP connection, also below TLS, has
// ended it, as far as the kernel knows.
func Established(c net.Conn) bool {
	info := tcpInfo(c)
	return info == nil || info.State == unix.BPF_TCP_ESTABLISHED
}

// tcpInfo reads a TCP connection's struct tcp_info, also below TLS; nil: it is none, or
// closed.
func tcpInfo(c net.Conn) (info *unix.TCPInfo) {
	for {
		under, wraps := c.(interface{ NetConn() net.Conn })
		if !wraps {
			break
		}
		c = under.NetConn()
	}
	t, isTCP := c.(*net.TCPConn)
	if !isTCP {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	err = raw.Control(func(fd uintptr) {
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err != nil {
			info = nil
		}
	})
	if err != nil {
		return nil
	}
	return info
}
