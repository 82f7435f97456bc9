package observe

import (
	"net/netip"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// A Direct is a connection on which a process of this host sends messages and which was not
// redirected to a proxy.
type Direct struct {
	Cookie      uint64 // SO_COOKIE of the socket
	Local, Peer netip.AddrPort
	Dialect     pslite.Dialect // of its messages; Unknown: none has been seen
}

// Directs returns all of them. A connection whose end was missed stays in the list until its
// stream is dropped; callers check with the kernel.
func (o *Observer) Directs() (all []Direct) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, s := range o.streams {
		if s.closed || s.timing || id.Direction() == bpf.Ingress || s.ends != [2]netip.AddrPort{s.from, s.to} {
			continue
		}
		d := Direct{Cookie: id.Cookie(), Local: s.from, Peer: s.to}
		if s.spoke {
			d.Dialect, _ = s.detector.Dialect()
		}
		all = append(all, d)
	}
	return all
}
