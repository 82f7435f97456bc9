package jobs

import (
	"sync/atomic"

	"github.com/psidecar/psidecar/proxy/zmtp"
)

// handshake follows what a process sends first on a connection, up to its READY. Nothing may be put
// in for the process before: libzmq ends a connection on which a message arrives before it has sent
// READY itself, and the message is lost. The far process waits for that READY too. consume is for
// one goroutine at a time; done may be read by any.
type handshake struct {
	done     atomic.Bool
	greeting zmtp.Decoder
	greeted  bool
	rest     []byte // received, and no whole command yet; at most zmtp.MaxCommand
}

// consume is shown the next bytes, and reports whether the handshake ended in them.
func (s *handshake) consume(b []byte) (done bool) {
	if len(b) == 0 || s.done.Load() {
		return false
	}
	if !s.greeted {
		ev, rest, err := s.greeting.Next(b)
		if err != nil {
			return s.end() // not ZMTP: nothing is put in
		}
		if ev.Kind != zmtp.GreetingDone {
			return false
		}
		s.greeted, b = true, rest
	}
	s.rest = append(s.rest, b...)
	for {
		h, n, err := zmtp.CutHeader(s.rest)
		switch {
		// Not a handshake as libzmq's: there is nothing to wait for.
		case err != nil || n > 0 && (!h.Command() || h.Size > zmtp.MaxCommand):
			return s.end()
		case n == 0 || len(s.rest) < n+int(h.Size):
			return false
		}
		name, _, err := zmtp.ParseCommand(s.rest[n : n+int(h.Size)])
		if err != nil || string(name) == zmtp.CommandReady {
			return s.end()
		}
		s.rest = s.rest[n+int(h.Size):]
	}
}

// end marks the handshake as done.
func (s *handshake) end() bool {
	s.rest = nil
	s.done.Store(true)
	return true
}
