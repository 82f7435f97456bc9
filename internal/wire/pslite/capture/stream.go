package capture

import (
	"errors"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// maxMeta bounds a meta frame and a command, in bytes. The largest real ones, BytePS's
// node tables, take 552 bytes a node.
const maxMeta = 1 << 20

// maxFrames bounds the frames of a message; PS-lite's have at most five.
const maxFrames = 1024

// stream finds the messages in one direction of a connection. It is synced while the
// decoder knows where it stands, lost after a gap or an error, when it looks for the
// start of a message in each segment, and foreign if the direction never was ZMTP.
type stream struct {
	job   *job
	flow  Flow
	mode  mode
	dec   *zmtp.Decoder
	det   pslite.Detector
	late  bool // the connection's beginning was not recorded
	known bool // it is ZMTP, or was lost because bytes are missing: not foreign

	// The message or command at hand. Nothing is counted before it is complete.
	wire    uint64 // its bytes so far, headers included
	broken  bool   // a part of it was not recorded
	command bool
	prefix  int           // 1 if an identity frame precedes the meta, else 0: the meta's index
	sizes   []uint64      // of all frames begun
	whole   []zmtp.Gather // by frame; only of those that are wanted
	frames  [][]byte
}

// mode is how a stream reads its bytes.
type mode uint8

const (
	synced mode = iota
	lost        // looking for the start of a message
	foreign
)

// newStream returns a stream that waits for a greeting or, if the beginning is missing,
// for the start of a message.
func newStream(j *job, f Flow, late bool) *stream {
	s := &stream{job: j, flow: f, late: late, dec: zmtp.NewDecoder(zmtp.Limits{CommandSize: maxMeta, Frames: maxFrames})}
	if late {
		s.mode = lost
	}
	return s
}

// Bytes implements Sink.
func (s *stream) Bytes(t time.Time, b []byte) {
	if s.mode == lost && !s.resync(b) || s.mode == foreign {
		s.job.totals.UnsyncedBytes += uint64(len(b))
		return
	}
	for {
		ev, rest, err := s.dec.Next(b)
		s.wire += uint64(len(b) - len(rest))
		if err != nil {
			// Something in between was not what it looked like. If the connection was
			// never seen to be ZMTP, it is another protocol.
			s.lose(uint64(len(rest)))
			if !s.known && !s.late {
				s.mode = foreign
				s.job.totals.ForeignStreams++
			}
			return
		}
		b = rest
		switch ev.Kind {
		// The segment's memory is the caller's: what is needed later is copied now.
		case zmtp.NeedMore:
			for i := range s.sizes {
				s.whole[i].Keep()
			}
			return
		case zmtp.GreetingDone:
			// The greeting is neither a message nor lost.
			s.wire, s.known = 0, true
		case zmtp.FrameStart:
			s.startFrame(ev.Header)
		case zmtp.FrameBody:
			if s.wanted(len(s.sizes) - 1) {
				s.whole[len(s.sizes)-1].Add(ev.Body)
			}
		case zmtp.FrameEnd:
			s.endFrame(ev.Header, t)
		}
	}
}

// startFrame begins the next frame of the message, or a command.
func (s *stream) startFrame(h zmtp.Header) {
	s.command = h.Command()
	s.sizes = append(s.sizes, h.Size)
	if len(s.whole) < len(s.sizes) {
		s.whole = append(s.whole, zmtp.Gather{})
	}
	s.whole[len(s.sizes)-1].Start()
}

// wanted reports whether frame i must be kept whole: identity and meta always, data
// frames if the caller asked for them.
func (s *stream) wanted(i int) bool {
	return i <= s.prefix && s.sizes[i] <= maxMeta || i > s.prefix && s.job.opt.Data
}

// endFrame checks for an identity before the meta, and for the end of the message.
func (s *stream) endFrame(h zmtp.Header, t time.Time) {
	if !h.More() {
		s.finish(t)
	} else if len(s.sizes) == 1 {
		if _, ok := pslite.ParseIdentity(s.whole[0].Bytes()); ok {
			s.prefix = 1
		}
	}
}

// finish handles a message or command that is complete. One whose meta has a gap is not
// counted as a message.
func (s *stream) finish(t time.Time) {
	switch {
	case s.command:
		s.onCommand()
	case s.wholeMeta():
		s.onMessage(t)
	default:
		s.job.totals.UnsyncedBytes += s.wire
	}
	s.reset()
}

// wholeMeta reports whether at least the meta frame is complete.
func (s *stream) wholeMeta() bool {
	return len(s.sizes) > s.prefix && uint64(len(s.whole[s.prefix].Bytes())) == s.sizes[s.prefix]
}

// reset prepares for the next message.
func (s *stream) reset() {
	s.sizes, s.wire, s.broken, s.prefix = s.sizes[:0], 0, false, 0
}

// onCommand learns the sender's node id from READY's identity.
func (s *stream) onCommand() {
	s.countFrames()
	name, data, err := zmtp.ParseCommand(s.whole[0].Bytes())
	if err != nil || string(name) != zmtp.CommandReady {
		return
	}
	if ready, err := zmtp.ParseReady(data); err == nil {
		if id, ok := pslite.ParseIdentity(ready.Identity); ok {
			s.job.ids[s.flow] = id
		}
	}
}

// countFrames adds the frames at hand to the totals.
func (s *stream) countFrames() {
	s.job.totals.Frames += uint64(len(s.sizes))
	for _, n := range s.sizes {
		s.job.totals.BodyBytes += n
	}
}

// onMessage decodes a message, learns the node table from it, and hands it over.
func (s *stream) onMessage(t time.Time) {
	m := &s.job.msg
	d, err := s.det.Decode(s.whole[s.prefix].Bytes(), &m.Meta)
	if err != nil {
		s.job.totals.NotPSLite++
		var fork *pslite.ForkError
		if errors.As(err, &fork) {
			s.job.totals.Forks[fork.Fork]++
		}
		s.job.totals.UnsyncedBytes += s.wire
		return
	}
	s.countFrames()
	s.job.totals.Messages++
	// Learned before the message is named, so that the table that it brings names its
	// own sender and receiver.
	s.job.table.Learn(&m.Meta)
	// The Message is reused for all streams of the job; only its meta was overwritten
	// by decoding.
	m.Identity, m.Data = nil, nil
	if s.prefix > 0 {
		m.Identity = s.whole[0].Bytes()
	}
	if s.job.opt.Data && !s.broken {
		s.frames = s.frames[:0]
		for i := s.prefix + 1; i < len(s.sizes); i++ {
			s.frames = append(s.frames, s.whole[i].Bytes())
		}
		m.Data = s.frames
	}
	m.Time, m.Flow, m.Dialect, m.Sizes = t, s.flow, d, s.sizes
	m.From, m.To = s.sender(m.Identity), s.receiver(&m.Meta)
	if s.job.err == nil && s.job.emit != nil {
		s.job.err = s.job.emit(m)
	}
}

// sender names the node that sent a message: by its identity frame, by the connection's
// READY, or by its address.
func (s *stream) sender(identity []byte) string {
	id := s.job.ids[s.flow]
	if identity != nil {
		id, _ = pslite.ParseIdentity(identity)
	}
	if name := pslite.NodeName(id); name != "" {
		return name
	}
	return s.job.name(s.flow.Src)
}

// receiver names the node at the connection's other end: the one that listens there or,
// for answers that come back on the request's connection, the one whose READY named it.
// Before the node table is known only the scheduler can be named: nodes ask it for
// their ids.
func (s *stream) receiver(m *pslite.Meta) string {
	if m.Control.Cmd == pslite.AddNode && len(m.Control.Nodes) == 1 && m.Control.Nodes[0].ID == pslite.Empty {
		return pslite.Scheduler.String()
	}
	if name := pslite.NodeName(s.job.ids[s.flow.Reverse()]); name != "" {
		return name
	}
	return s.job.name(s.flow.Dst)
}

// Gap implements Sink. A gap inside of a frame's body is skipped; after any other the
// stream is lost.
func (s *stream) Gap(t time.Time, n uint64) {
	if s.mode != synced {
		return
	}
	// The gap reaches beyond the frame's body, so that the next header may be in it:
	// where frames begin is not known any more.
	if n > s.dec.Left() {
		s.known = true
		s.lose(0)
		return
	}
	s.dec.Discard(n)
	s.broken = true
	s.Bytes(t, nil) // for the frame's end
}

// lose gives up the message at hand and extra bytes behind it.
func (s *stream) lose(extra uint64) {
	s.job.totals.UnsyncedBytes += s.wire + extra
	s.reset()
	s.mode = lost
}

// End implements Sink.
func (s *stream) End() {
	s.job.totals.UnsyncedBytes += s.wire
	s.reset()
}
