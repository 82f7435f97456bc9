package jobs

import (
	"sync/atomic"

	"github.com/psidecar/psidecar/proxy/zmtp"
)

// handshake follows what a process says first on a connection, until its READY has
// passed. Before, nothing can be put in for it: libzmq ends a connection on which a
// message comes while it has not said READY itself, and the message is lost. The other
// process waits for that READY too. look is for one goroutine at a time.
type handshake struct {
	done     atomic.Bool
	greeting zmtp.Decoder
	greeted  bool
	rest     []byte // came, and is no whole command yet
}

// consume is shown what comes next, and reports whether the handshake is done with it.
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

func (s *handshake) end() bool {
	s.rest = nil
	s.done.Store(true)
	return true
}
