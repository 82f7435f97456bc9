package jobs

import (
	"bytes"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// Bounds on the bytes that are held of a message.
const (
	maxMeta  = 1 << 20
	maxKeys  = 64 << 20
	maxTaken = 256 << 20 // of one that does not pass
)

// watcher is shown the messages of a stream; requests and answers are watchers. All methods are
// called by the goroutine that calls next.
type watcher interface {
	// ready is called with the sender's node id, Empty where it has none yet. With an error the
	// connection ends, and its READY does not pass: a sender that the other side believed would
	// take the place of the real one.
	ready(id int32) error
	// named is called with the run of the node table that follows, as the proxy on the scheduler's
	// host has sent it.
	named(run plan.Run)
	// inspect is shown the beginning of a message: its meta and, if there are data frames and
	// wantsKeys asks for it, the keys. It reports whether the message passes unchanged. Otherwise
	// takeMessage is called with the whole message, whose memory is the watcher's to keep.
	wantsKeys(m *pslite.Meta) bool
	inspect(m *pslite.Message, d pslite.Dialect) (passes bool, err error)
	takeMessage(m *pslite.Message, d pslite.Dialect) error
}

// stream follows the frames of one direction of a connection, and lets its bytes pass, except for
// messages that its watcher takes. It does no I/O: next is called with the bytes at hand. It is for
// one goroutine at a time.
//
// Invariants: once blind is set it stays so, and everything passes. left is the rest of the current
// frame of a message that passes; it is 0 while taking.
type stream struct {
	watcher  watcher
	greeting zmtp.Decoder
	greeted  bool
	blind    bool // not ZMTP 3 with NULL, or not PS-lite
	inside   bool // between frames of a message that passes
	left     uint64
	taking   bool // the watcher takes the current message, of which more has to come
	detector pslite.Detector
	message  pslite.Message
	frames   [][]byte
}

// between reports whether a message may be put in at this place.
func (s *stream) between() bool {
	return s.greeted && !s.blind && !s.inside && s.left == 0 && !s.taking
}

// next consumes the first n bytes of b, the next bytes of the stream, and reports whether they
// pass. With n 0 it needs more bytes, at least need in all, and must be called again with the same
// beginning.
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
	// A further frame of a message that passes. ZMTP allows commands between frames, and they
	// are looked at.
	case s.inside && !h.Command():
		s.inside, s.left = h.More(), h.Size
		return n, true, 0, nil
	case h.Command():
		return s.command(b, h, n)
	}
	return s.beginMessage(b, h, n)
}

// greet consumes bytes of the greeting. A stream that does not begin with one is blind.
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

// command passes a command, and shows the watcher a READY and a run's name. The latter does not
// pass.
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

// beginMessage handles the start of a message, or of one that is being taken. A first frame too
// large for a meta is not PS-lite's; such a message passes.
func (s *stream) beginMessage(b []byte, h zmtp.Header, n int) (int, bool, int, error) {
	if h.Size > maxMeta {
		s.inside, s.left = h.More(), h.Size
		return n, true, 0, nil
	}
	end := n + int(h.Size)
	if len(b) < end {
		return 0, true, end, nil
	}
	// While a message is being taken its beginning has been looked at; only its end is missing.
	if !s.taking {
		// A ROUTER socket sends an identity frame first. It passes by itself, so a message that is
		// taken begins with the meta.
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

// look shows the watcher meta and keys, and returns how many bytes of b they take. It returns need
// where there are too few.
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
	// The watcher decides here, once. When more bytes are needed first, look returns before this
	// point and is called again with the same message.
	passes, err = s.watcher.inspect(m, d)
	if passes && err == nil {
		s.inside = more
	}
	return passes, held, 0, err
}

// cut returns the size of the message at the start of b, or need where it is incomplete.
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

// takeWhole gives the watcher a copy of a message: b is a buffer that will be overwritten.
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

// cutMessage is the inverse of appendMessage, for a complete message. The frames refer to b's
// memory.
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
