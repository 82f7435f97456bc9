package relay

import (
	"context"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/payoff"
)

// Limits on what a direction holds of one message, in bytes and frames.
const (
	maxFrames = 8
	maxMeta   = 1 << 20
	maxKeys   = 64 << 20
	maxFrame  = 128 << 10 // any other frame
	maxWhole  = 256 << 10 // all of those together

	// HeadLimit is the [Link.HeadLimit] of all links.
	HeadLimit = 96 << 20
	// HoldLimit is the size of the largest message that is held for a [Holder], in bytes with its
	// headers. Even an encoding that saves nothing then fits into HeadLimit.
	HoldLimit = HeadLimit - 1<<20
)

// encoder is the side that turns the stream of a job's process into the link's. Without a sender
// the stream passes unchanged; once the observer has seen enough, or something is not PS-lite's, it
// is spliced.
//
// Between two steps it is at one of three points: between two messages (not inside, left is 0),
// inside a message before a frame's header (inside, left is 0), or inside a frame's body (left >
// 0). Messages that are held are consumed whole, so the last two concern only messages, or their
// rest, that pass.
type encoder struct {
	sender   Sender   // nil: nothing is encoded
	holder   Holder   // sender, where it is one
	sharer   Sharer   // sender, where it is one
	observer Observer // nil: none, or no longer
	gather
	staged
	flow    *Flow
	decided bool          // the first message was PS-lite's, so the stream is
	asked   bool          // holder was asked about the current message
	whole   bool          // and wants all of it, or the stage does
	odd     bool          // the current message is not as PS-lite makes them
	payoff  *payoff.Meter // nil: messages are encoded whether it pays or not
	far     pathSampler   // with payoff
	skim
	frames   [][]byte
	shown    Message              // the message of frames
	ready    func(command []byte) // is called with the READY command; may be nil
	detector pslite.Detector
	decoded  decoded // of shown
}

// skim is the position inside a message that passes without being held.
type skim struct {
	inside bool   // a message is unfinished
	left   uint64 // bytes that the current frame's body lacks
}

// newEncoder returns the encoder of a direction; s may be nil.
func newEncoder(s Sender, flow *Flow) *encoder {
	e := &encoder{sender: s, flow: flow}
	e.holder, _ = s.(Holder)
	e.sharer, _ = s.(Sharer)
	return e
}

// verdict is what a side wants its direction to do after a step. The zero verdict asks for more
// input.
type verdict struct {
	flush bool   // write the output, then step again with the buffered bytes
	need  int    // wait until that many bytes are buffered, if there is room
	move  uint64 // pass on that many bytes, none of which is buffered
	raw   bool   // splice all the rest
	pass  bool   // the other end stands between two messages, and nothing more comes
	wait  bool   // messages that the gatherer took must go first, or the stage lets none pass
	own   bool   // then write the stage's own messages
}

// step consumes what it can of in and adds what it becomes to out. Slices that it lends to out
// refer to in's buffer, so the direction flushes before it reads again.
func (e *encoder) step(in *input, out *output) (verdict, error) {
	if e.idle() {
		return verdict{raw: true}, nil
	}
	if full, err := e.due(out); full || err != nil {
		return verdict{flush: full}, err
	}
	if e.between() {
		if v, err := e.sendsOwn(out); v != (verdict{}) || err != nil {
			return e.unlessDue(v, err, out)
		}
	}
	for in.r < in.w {
		if out.full() {
			return verdict{flush: true}, nil
		}
		if e.left > 0 {
			if e.body(in, out) {
				continue
			}
			return verdict{move: e.left}, nil
		}
		var v verdict
		var err error
		if e.inside {
			v, err = e.pass(in, out)
		} else {
			v, err = e.message(in, out)
		}
		if v, err = e.unlessDue(v, err, out); err != nil && e.sender == nil && e.stage == nil {
			return verdict{raw: true}, nil // it is the destination's business
		}
		if err != nil || v != (verdict{}) {
			return v, err
		}
	}
	return verdict{move: e.left}, nil
}

// idle reports whether nobody has to see the rest of the stream.
func (e *encoder) idle() bool {
	return e.sender == nil && e.observer == nil && e.stage == nil && e.receptive == nil
}

// body passes buffered bytes of the current frame's body, and reports whether that is complete.
func (s *skim) body(in *input, out *output) bool {
	b := in.bytes()
	if uint64(len(b)) > s.left {
		b = b[:s.left]
	}
	out.lend(b)
	in.r += len(b)
	s.left -= uint64(len(b))
	return s.left == 0
}

// pass starts the next frame of a message that is not held. Commands may come between frames.
func (e *encoder) pass(in *input, out *output) (verdict, error) {
	b := in.bytes()
	h, n, err := zmtp.CutHeader(b)
	if err != nil {
		return verdict{}, reason.Errorf(reason.MalformedJob, "from the job: %w", err)
	}
	if n == 0 {
		return verdict{need: zmtp.MaxHeader}, nil
	}
	if h.Command() {
		return e.command(h, n, in, out)
	}
	out.lend(b[:n])
	in.r += n
	e.left, e.inside = h.Size, h.More()
	return verdict{}, nil
}

// command passes a command of the job. One that looks like the proxies' own is refused: the far end
// would take it for an encoded message.
func (e *encoder) command(h zmtp.Header, n int, in *input, out *output) (verdict, error) {
	if h.Size > zmtp.MaxCommand {
		return verdict{}, reason.Errorf(reason.MalformedJob, "from the job: a command of %d bytes, at most %d are allowed", h.Size, zmtp.MaxCommand)
	}
	b := in.bytes()
	total := n + int(h.Size)
	if len(b) < total {
		return verdict{need: total}, nil
	}
	if isOurs(b[n:total]) {
		return verdict{}, reason.Errorf(reason.Reserved, "the job sent a command %q, which is reserved for proxies", commandName)
	}
	passes, err := e.hear(b[n:total])
	if err != nil {
		return verdict{}, err
	}
	e.greet(b[n:total])
	if passes {
		out.lend(b[:total])
	}
	in.r += total
	return verdict{}, nil
}

// message handles the start of a message or command: it holds as much as scan asks for, and then
// encodes the message, gives it to the gatherer or passes it.
func (e *encoder) message(in *input, out *output) (verdict, error) {
	if e.fate == undecided {
		if v, err := e.sendsOwn(out); v != (verdict{}) || err != nil {
			return v, err
		}
	}
	if e.unheld {
		if e.isWaiting() {
			return verdict{wait: true}, nil
		}
		e.inside, e.unheld = true, false
		e.next()
		return verdict{}, nil
	}
	held, v, err := e.scan(in.bytes())
	if err != nil || v.need > 0 {
		return v, err
	}
	if len(e.frames) == 0 {
		return e.passUnseen(in, out)
	}
	if !e.decided {
		// The first message decides about the stream. The command tells the far end to stop parsing
		// at this very byte.
		if why := e.shown.decode().meta; why != nil {
			e.flow.noteUnread(why)
			if e.sender != nil {
				out.taken(appendCommand(out.space(), flagRaw, nil))
			}
			return verdict{raw: true}, nil
		}
		e.decided = true
	}
	e.receives() // not a handshake as libzmq's: there is nothing to wait for
	if v, done, err := e.route(held, in, out); done {
		return v, err
	}
	if e.odd {
		return e.passUnseen(in, out)
	}
	if e.shown.Rest && e.wants(held) {
		return verdict{}, nil // scanned again, with all of it
	}
	// The codec may block until the far end has used what it was sent; what is in out must reach it
	// first, or both would wait.
	if e.sharer != nil && out.waiting > 0 && e.sharer.MayWait(held) {
		return verdict{flush: true}, nil
	}
	switch e.take() {
	case Took:
		in.r += held
		e.next()
		return verdict{}, nil
	case Waits:
		return verdict{wait: true}, nil
	}
	seen := e.observe()
	if e.sender == nil || !e.encode(out) {
		out.lend(in.bytes()[:held])
	}
	in.r += held
	e.inside = e.shown.Rest
	e.next()
	return verdict{raw: seen && e.idle()}, nil
}

// passUnseen passes a command, or begins to pass a message without showing it to the codec.
func (e *encoder) passUnseen(in *input, out *output) (verdict, error) {
	if e.isWaiting() {
		return verdict{wait: true}, nil
	}
	if h, n, err := zmtp.CutHeader(in.bytes()); err == nil && h.Command() {
		return e.command(h, n, in, out)
	}
	e.inside = true
	e.next()
	return verdict{}, nil
}

// observe shows e.shown to the observer, and reports whether there is none or it has seen enough.
func (e *encoder) observe() (enough bool) {
	if e.observer == nil || e.observer.Observe(&e.shown) {
		return e.observer == nil
	}
	e.observer.Close()
	e.observer = nil
	return true
}

// encode adds the encoded form of e.shown to out. It returns false, with out unchanged, where the
// codec leaves the message as it is.
//
// The head is appended directly to out's scratch memory, so that it is not copied.
func (e *encoder) encode(out *output) bool {
	m := &e.shown
	e.flow.messages.Add(1)
	sampled := e.flow.messages.Load()%timedOneIn == 0
	var began time.Time
	if sampled || e.payoff != nil {
		began = time.Now()
	}
	if e.payoff != nil {
		e.payoff.Load.Sent()
	}
	// The command's header is written when its size is known, into room for
	// the longest.
	start := len(out.scratch)
	var blank [zmtp.MaxHeader + commandExtra]byte
	dst := append(out.space(), blank[:]...)
	head, plain, ok := e.sender.Encode(dst, m)
	var took time.Duration
	if sampled || e.payoff != nil {
		took = time.Since(began)
	}
	if sampled {
		e.flow.codecNanos.Add(timedOneIn * uint64(took))
	}
	if !ok {
		out.regain(head)
		return false
	}
	body := head[start+len(blank):]
	follow := m.Rest || plain&(1<<len(m.Frames)-1) != 0
	var flags byte
	if follow {
		flags = flagFollow
	}
	out.takenFrom(head, start+len(blank)-putCommandHeader(head[start:start+len(blank)], flags, len(body)))
	e.flow.encoded.Add(1)
	// The frames that follow form one ZMTP message; its last frame must not have the MORE flag,
	// unless frames of the rest come after it.
	lastPlain, spared := -1, -len(body)
	for i, f := range m.Frames {
		if plain&(1<<i) != 0 {
			lastPlain = i
		} else {
			spared += len(f)
		}
	}
	if e.sharer != nil {
		lane, kept := e.sharer.Elsewhere()
		e.flow.lane.Add(uint64(lane))
		e.flow.spared.Add(uint64(kept))
		spared -= lane
	}
	if e.payoff != nil {
		e.payoff.Encoded(began, spared, took)
	}
	for i, f := range m.Frames {
		if plain&(1<<i) != 0 {
			out.taken(zmtp.AppendHeader(out.space(), zmtp.FrameHeader(len(f), m.Rest || i < lastPlain)))
			out.lend(f)
		}
	}
	return true
}

// timedOneIn is the sampling rate of codec times: reading the clock for each message would cost
// more than encoding a short one.
const timedOneIn = 16

// noRoom is called when there is no memory to hold the next message: it passes unencoded. One that a
// stage has not let pass waits for memory.
func (e *encoder) noRoom(ctx context.Context, in *input, need int) error {
	if e.stage != nil && e.fate != toPass {
		if e.fate == undecided && !e.tight {
			e.tight = true
			return nil
		}
		return in.growWithin(ctx, need, "a message that may have displaced keys")
	}
	e.flow.unheld.Add(1)
	if e.gatherer != nil {
		e.unheld = true // what was taken goes first
		return nil
	}
	e.inside = true
	e.next()
	return nil
}

// moved accounts for n bytes of a body that the kernel moved.
func (e *encoder) moved(n uint64, _ *output) error {
	e.left -= n
	return nil
}

// rest handles bytes that are still buffered when the stream ends, such as an incomplete message:
// they pass.
func (e *encoder) rest(in *input, out *output) error {
	if e.fate != toTake { // nobody gets a part of it
		out.lend(in.bytes())
	}
	in.r = in.w
	return nil
}

// between reports whether the encoder is between two messages of those that it has consumed. A
// message about which a stage has decided counts as begun.
func (e *encoder) between() bool { return !e.inside && e.left == 0 && e.fate == undecided }

// written is called when all output has been written. That is a good moment to sample the path: the
// link has something to do.
func (e *encoder) written() {
	if e.payoff != nil {
		e.sample(time.Now())
	}
	if e.gatherer != nil {
		e.gatherer.Written()
	}
}

func (e *encoder) close() {
	if e.sender != nil {
		e.sender.Close()
	}
	if e.observer != nil {
		e.observer.Close()
	}
}
