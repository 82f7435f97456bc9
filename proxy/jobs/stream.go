package jobs

import (
	"bytes"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// Bounds of the bytes of a message that are held.
const (
	maxMeta  = 1 << 20
	maxKeys  = 64 << 20
	maxTaken = 256 << 20 // one that does not pass as it is
)

// watcher is what a stream's messages are shown to.
type watcher interface {
	// ready is called with the sender's node id, Empty where it has none yet. With
	// an error the connection ends, and nobody behind this proxy hears of it: a
	// sender that the other side believed would take the real one's place.
	ready(id int32) error
	// named is called with the run of the node table that follows, sent by the
	// proxy on the scheduler's host.
	named(run plan.Run)
	// look is shown the beginning of a message: its meta and, where frames
	// follow, the first of them if wantsKeys said so. It reports whether the
	// message passes as it is; otherwise take is called with all of it, whose
	// memory is the watcher's.
	wantsKeys(m *pslite.Meta) bool
	inspect(m *pslite.Message, d pslite.Dialect) (passes bool, err error)
	takeMessage(m *pslite.Message, d pslite.Dialect) error
}

// stream follows one direction of a connection and lets its bytes pass, but for
// the messages that its watcher takes. One goroutine at a time may use it.
//
// Invariants: once blind, it stays so, and all passes. left is what remains of the
// frame that passes; it is 0 while taking.
type stream struct {
	watcher  watcher
	greeting zmtp.Decoder
	greeted  bool
	blind    bool // not ZMTP, or not PS-lite: all passes
	inside   bool // a message that passes is unfinished
	left     uint64
	taking   bool // the watcher wants the present message whole
	detector pslite.Detector
	message  pslite.Message
	frames   [][]byte
}

// between reports whether something else may be put in at this place.
func (s *stream) between() bool {
	return s.greeted && !s.blind && !s.inside && s.left == 0 && !s.taking
}

// next consumes from b, the bytes that come next, and reports whether what it
// consumed passes. With n 0 it needs more bytes, at least need in all.
func (s *stream) next(b []byte) (n int, passes bool, need int, err error) {
	switch {
	case len(b) == 0:
		return 0, true, 1, nil
	case s.blind:
		return len(b), true, 0, nil
	case !s.greeted:
		return s.greet(b), true, 0, nil
	case s.left > 0:
		n = int(min(uint64(len(b)), s.left))
		s.left -= uint64(n)
		return n, true, 0, nil
	}
	h, n, err := zmtp.CutHeader(b)
	switch {
	case err != nil:
		return 0, false, 0, reason.Errorf(reason.MalformedJob, "following a job's messages: %w", err)
	case n == 0:
		return 0, true, zmtp.MaxHeader, nil
	case s.inside && !h.Command():
		s.inside, s.left = h.More(), h.Size
		return n, true, 0, nil
	case h.Command():
		return s.command(b, h, n)
	}
	return s.beginMessage(b, h, n)
}

// greet consumes the greeting.
func (s *stream) greet(b []byte) (n int) {
	ev, rest, err := s.greeting.Next(b)
	switch {
	case err != nil:
		s.blind = true
		return len(b)
	case ev.Kind == zmtp.GreetingDone:
		s.greeted = true
		major, _ := s.greeting.Greeting().Version()
		s.blind = major != 3 || s.greeting.Greeting().Mechanism() != "NULL"
	}
	return len(b) - len(rest)
}

// command passes a command, and reports the id of a READY.
func (s *stream) command(b []byte, h zmtp.Header, n int) (int, bool, int, error) {
	if h.Size > zmtp.MaxCommand { // it may be a READY with an identity
		return 0, false, 0, reason.Errorf(reason.MalformedJob, "following a job's messages: a command of %d bytes, at most %d are allowed", h.Size, zmtp.MaxCommand)
	}
	total := n + int(h.Size)
	if len(b) < total {
		return 0, true, total, nil
	}
	name, data, err := zmtp.ParseCommand(b[n:total])
	switch {
	case err != nil:
	case string(name) == commandRun:
		// The proxies' own: no process ever sees it, nor is it taken from one.
		if run := plan.Run(data); run.Valid() {
			s.watcher.named(run)
		}
		return total, false, 0, nil
	case string(name) == zmtp.CommandReady:
		if r, err := zmtp.ParseReady(data); err == nil {
			id, ok := pslite.ParseIdentity(r.Identity)
			if !ok {
				id = pslite.Empty
			}
			return total, true, 0, s.watcher.ready(id)
		}
	}
	return total, true, 0, nil
}

// beginMessage looks at a message.
func (s *stream) beginMessage(b []byte, h zmtp.Header, n int) (int, bool, int, error) {
	if h.Size > maxMeta {
		s.inside, s.left = h.More(), h.Size
		return n, true, 0, nil
	}
	end := n + int(h.Size)
	if len(b) < end {
		return 0, true, end, nil
	}
	if !s.taking {
		if _, ok := pslite.ParseIdentity(b[n:end]); ok && h.More() { // the meta comes next
			s.inside = true
			return end, true, 0, nil
		}
		passes, held, need, err := s.look(b, n, end, h.More())
		if err != nil || need > 0 {
			return 0, true, need, err
		}
		if passes {
			return held, true, 0, nil
		}
		s.taking = true
	}
	total, need, err := s.cut(b)
	if err != nil || need > 0 {
		return 0, true, need, err
	}
	s.taking = false
	return total, false, 0, s.takeWhole(b[:total])
}

// look shows the watcher meta and keys. It returns how many bytes they take.
func (s *stream) look(b []byte, from, end int, more bool) (passes bool, held, need int, err error) {
	m := &s.message
	m.Identity, m.Data = nil, nil
	d, err := s.detector.Decode(b[from:end], &m.Meta)
	if err != nil {
		s.blind = true
		return true, end, 0, nil
	}
	held = end
	if more && s.watcher.wantsKeys(&m.Meta) {
		h, n, err := zmtp.CutHeader(b[end:])
		switch {
		case err != nil:
			return false, 0, 0, reason.Errorf(reason.MalformedJob, "following a job's messages: %w", err)
		case n == 0:
			return false, 0, end + zmtp.MaxHeader, nil
		case h.Size > maxKeys || h.Size%8 != 0:
			return false, 0, 0, reason.Errorf(reason.MalformedJob, "a keys frame of %d bytes: at most %d, and a multiple of 8, can be followed", h.Size, maxKeys)
		case len(b) < end+n+int(h.Size):
			return false, 0, end + n + int(h.Size), nil
		}
		held, more = end+n+int(h.Size), h.More()
		s.frames = append(s.frames[:0], b[end+n:held])
		m.Data = s.frames
	}
	passes, err = s.watcher.inspect(m, d)
	if passes && err == nil {
		s.inside = more
	}
	return passes, held, 0, err
}

// cut returns how many bytes the message at the start of b takes.
func (s *stream) cut(b []byte) (total, need int, err error) {
	for {
		h, n, err := zmtp.CutHeader(b[total:])
		switch {
		case err != nil:
			return 0, 0, reason.Errorf(reason.MalformedJob, "following a job's messages: %w", err)
		case n == 0:
			return 0, total + zmtp.MaxHeader, nil
		case h.Size > maxTaken || uint64(total)+h.Size > maxTaken:
			return 0, 0, reason.Errorf(reason.Memory, "a message of more than %d bytes has displaced keys and cannot be held", maxTaken)
		}
		if total += n + int(h.Size); len(b) < total {
			return 0, total, nil
		}
		if !h.More() {
			return total, 0, nil
		}
	}
}

// takeWhole gives the watcher a copy of a whole message.
func (s *stream) takeWhole(b []byte) error {
	frames, err := cutMessage(bytes.Clone(b))
	if err != nil {
		return err
	}
	var m pslite.Message
	d, err := m.Decode(&s.detector, frames)
	if err != nil {
		return reason.Errorf(reason.MalformedJob, "a message with displaced keys: %w", err)
	}
	if err := s.watcher.takeMessage(&m, d); err != nil {
		return reason.Errorf(reason.Route, "%w", err)
	}
	return nil
}

// cutMessage is the reverse of appendMessage, of a message that is whole. The
// frames are b's memory.
func cutMessage(b []byte) (frames [][]byte, err error) {
	for len(b) > 0 {
		h, n, err := zmtp.CutHeader(b)
		if err != nil {
			return nil, err
		}
		frames = append(frames, b[n:n+int(h.Size):n+int(h.Size)])
		b = b[n+int(h.Size):]
	}
	return frames, nil
}

// appendMessage appends frames as a ZMTP message.
func appendMessage(dst []byte, frames [][]byte) []byte {
	for i, f := range frames {
		dst = zmtp.AppendHeader(dst, zmtp.FrameHeader(len(f), i < len(frames)-1))
		dst = append(dst, f...)
	}
	return dst
}
