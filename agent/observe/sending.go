package observe

import (
	"net/netip"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A Sending is a connection on which a process of this host sends messages.
type Sending struct {
	Cookie      uint64 // SO_COOKIE of the socket
	Local, Peer netip.AddrPort
	// Via is where the socket is connected: Peer, or the listener of the proxy to which it was
	// redirected.
	Via     netip.AddrPort
	Dialect pslite.Dialect // of its messages; Unknown: none has been seen
}

// Sendings returns all of them. A connection whose end was missed stays in the list until its
// stream is dropped; callers check with the kernel.
func (o *Observer) Sendings() (all []Sending) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, s := range o.streams {
		if s.closed || s.timing || id.Direction() == bpf.Ingress {
			continue
		}
		d := Sending{Cookie: id.Cookie(), Local: s.from, Peer: s.to, Via: s.ends[1]}
		if s.spoke {
			d.Dialect, _ = s.detector.Dialect()
		}
		all = append(all, d)
	}
	return all
}
