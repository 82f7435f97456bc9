package kv

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/psidecar/psidecar/cmd/psjob/van"
)

// A Handler says what a server does with requests. Its methods are called from one
// goroutine, in the order in which the messages arrived, so that a handler needs no
// lock.
type Handler interface {
	// Push applies values. The slices are valid until it returns.
	Push(head int32, keys []uint64, vals []float32, lens []int32) error
	// Pull appends the values of keys to dst. lens is nil where the request
	// does not say how many values each key has.
	Pull(head int32, keys []uint64, lens []int32, dst []float32) ([]float32, error)
	// Command answers a command.
	Command(c Command) ([]byte, error)
}

// A Server answers workers' requests. An error of its handler ends the van: the job
// could not go on correctly.
type Server struct {
	app
	handler Handler
	values  sync.Pool // of *[]float32, answers' memory
}

// NewServer starts a server on a van. Its handler may be called from then on.
func NewServer(v *van.Van, appID int, h Handler) (*Server, error) {
	s := &Server{app: app{van: v, id: appID, custID: appID, answers: make(map[int32][]Command)}, handler: h}
	s.values.New = func() any { return new([]float32) }
	var err error
	s.customer, err = v.NewCustomer(appID, appID, s.handle)
	return s, err
}

// handle answers one message. Answers to data requests are not expected: a server
// makes none.
func (s *Server) handle(ctx context.Context, m *van.Message) error {
	if m.Meta.SimpleApp {
		return s.handleCommand(ctx, m, s.handler.Command)
	}
	if !m.Meta.Request {
		return fmt.Errorf("node %d answers a data request, but servers make none", m.Sender)
	}
	if err := s.answer(ctx, m); err != nil {
		return fmt.Errorf("request %d from node %d: %w", m.Meta.Timestamp, m.Sender, err)
	}
	return nil
}

// answer applies a push, then reads what is pulled, and sends the answer: a request
// that does both gets the values with its own push in them. A push that fails has no
// answer, and ends the node.
func (s *Server) answer(ctx context.Context, m *van.Message) error {
	p, err := open(m)
	if err != nil {
		return err
	}
	back := van.NewMessage(m.Sender)
	s.address(back, m.Meta.Timestamp, m.Meta.CustomerID, false)
	// PS-lite's workers look at push and pull of an answer, and applications at its
	// head.
	back.Meta.Push, back.Meta.Pull, back.Meta.Head = m.Meta.Push, m.Meta.Pull, m.Meta.Head
	if m.Meta.Push {
		if err := s.handler.Push(m.Meta.Head, p.keys, p.vals, p.lens); err != nil {
			return err
		}
	}
	if m.Meta.Pull && len(p.keys) > 0 {
		// Values are copied out of the store, which later requests change while the
		// answer waits to be written.
		room := s.values.Get().(*[]float32)
		*room, err = s.handler.Pull(m.Meta.Head, p.keys, p.lens, slices.Grow((*room)[:0], len(p.keys)))
		if err != nil {
			return err
		}
		// The answer's keys are the request's memory, which is retained until the
		// answer was written.
		m.Retain()
		back.Written = func() {
			s.values.Put(room)
			m.Release()
		}
		parts{keys: p.keys, vals: *room, lens: p.lens, doubles: p.doubles}.close(back)
	}
	return s.van.Send(ctx, back)
}
