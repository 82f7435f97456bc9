package relay

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/payoff"
)

// pathSampler measures, by the kernel's TCP statistics, what a byte costs on the way to the other
// proxy.
type pathSampler struct {
	conn net.Conn
	last payoff.Sample
}

// sample takes a sample of the link for the meter's path, if one is due.
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

// readSample returns a sample of a TCP connection, also below TLS. Retransmitted bytes do not count
// as sent.
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

// Established reports whether a TCP connection, also below TLS, is established in both directions,
// as far as the kernel knows. It is true where that cannot be found out.
func Established(c net.Conn) bool {
	info := tcpInfo(c)
	return info == nil || info.State == unix.BPF_TCP_ESTABLISHED
}

// tcpInfo reads a TCP connection's struct tcp_info, also below TLS. It returns nil for other and
// closed connections.
func tcpInfo(c net.Conn) (info *unix.TCPInfo) {
	t := TCP(c)
	if t == nil {
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
