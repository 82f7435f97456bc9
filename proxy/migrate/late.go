package migrate

import (
	"errors"
	"slices"

	"github.com/psidecar/psidecar/proxy/route"
)

// A move that was given up while a push of it was in flight leaves the keys with the old owner, and
// the push still arrives at the server that they were to go to. If the keys had moved there by then,
// on whatever way and in whichever worker's name, the push would be added to a value that is
// complete: servers need not handle the messages of a worker in order. So until the push is answered
// the keys do not move. Only this site could move them: it is the one that moves the old owner's
// keys.
//
// With PS_RESEND such a move is not given up, and a push is repeated until it is answered.

// late is a push of a move that was given up.
type late struct {
	op     *route.Op
	worker int32
}

// maxLate bounds the late pushes; with as many, moves that have pushed are not given up.
const maxLate = 256

// ErrLate is the reason why keys are not moved now.
var ErrLate = errors.New("a push of an earlier move of these keys is not answered yet")

// ErrDisconnected is the reason of a move that was given up because the connection ended over which
// it had pushed.
var ErrDisconnected = errors.New("the connection to the new owner has ended")

// giveUp forgets an op of a move that is given up, in a worker's name, unless it is a push that may
// still arrive.
func (s *Site) giveUp(worker int32, op *route.Op) {
	if !op.Push || !op.InFlight() || s.Router.Resend() {
		s.Router.Cancel(op)
		return
	}
	op.Values = nil // they were copied
	s.late = append(s.late, late{op, worker})
}

// mayArrive reports whether a late push for one of the keys is not answered yet.
func (s *Site) mayArrive(keys []uint64) bool {
	return slices.ContainsFunc(s.late, func(l late) bool {
		return slices.ContainsFunc(keys, func(key uint64) bool {
			_, found := slices.BinarySearch(l.op.Keys, key)
			return found
		})
	})
}

// Disconnect is called when a worker's connection to a server has ended. Pushes that were sent over
// it may have been lost, or may still arrive. So a move that waits for the answer to one is given up,
// and late ones are forgotten. It reports whether there were any; the caller then begins no move
// before what was on its way has arrived. With PS_RESEND pushes are repeated, and it does nothing.
func (s *Site) Disconnect(worker, server int32) (pushed bool) {
	if s.Router.Resend() {
		return false
	}
	s.late = slices.DeleteFunc(s.late, func(l late) bool {
		gone := l.worker == worker && s.Router.Asks(l.op, worker, server)
		if gone {
			s.Router.Cancel(l.op)
			pushed = true
		}
		return gone
	})
	for _, x := range s.inOrder() {
		if x.phase == writing && x.worker == worker && s.Router.Asks(x.op, worker, server) {
			s.Router.Cancel(x.op)
			s.endMove(x, ErrDisconnected)
			pushed = true
		}
	}
	return pushed
}
