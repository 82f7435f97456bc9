package zmtp

import (
	"encoding/binary"
	"fmt"
)

// Kind says what [Decoder.Next] found.
type Kind uint8

const (
	// NeedMore: the chunk is used up; pass the next one.
	NeedMore Kind = iota
	// GreetingDone: the greeting is complete; see [Decoder.Greeting].
	GreetingDone
	// FrameStart: a frame's header is complete; Event.Header holds it.
	FrameStart
	// FrameBody: Event.Body is the next piece of the frame's body, never
	// empty, a slice of the chunk.
	FrameBody
	// FrameEnd: the frame is complete. If the header says neither More nor Command, so
	// is the message.
	FrameEnd
)

// Event is one step of a stream. Header is set for the three Frame kinds.
type Event struct {
	Kind   Kind
	Header Header
	Body   []byte
}

// Limits bounds what a [Decoder] accepts; a zero field is no bound. The decoder itself
// holds no body; the bounds protect callers that do.
type Limits struct {
	FrameSize   uint64 // bytes in a data frame's body
	CommandSize uint64 // bytes in a command's body
	Frames      int    // data frames in one message
}

// Decoder cuts one direction of a connection into its frames. Its zero value expects a
// greeting first and has no limits. It allocates nothing, whatever sizes the stream
// claims, and does no input or output, so that the same code decodes captures, eBPF
// records and sockets. It is not safe for concurrent use.
type Decoder struct {
	state    state
	held     int    // bytes of an incomplete greeting or header in greeting or partial
	frames   int    // data frames begun in the current message
	left     uint64 // body bytes of the current frame that are still to come
	offset   uint64 // bytes consumed since the stream's start
	header   Header
	limits   Limits
	failed   *SyntaxError
	partial  [MaxHeader]byte
	greeting Greeting
}

type state uint8

const (
	inGreeting state = iota
	inHeader
	inBody
)

// NewDecoder returns a decoder at a stream's first byte.
func NewDecoder(limits Limits) *Decoder { return &Decoder{limits: limits} }

// Reset prepares d for another stream, with its limits kept. If synced is true the
// stream is taken up at a frame's header, at the start of a message, instead of at the
// greeting.
func (d *Decoder) Reset(synced bool) {
	*d = Decoder{limits: d.limits}
	if synced {
		d.state = inHeader
	}
}

// Next consumes bytes of chunk up to the next event, and returns the event and the rest
// of the chunk. Call it with the rest until it reports NeedMore; a chunk may end
// anywhere. The events of a frame are FrameStart, any number of FrameBody, FrameEnd. An
// error is a [*SyntaxError]: the stream cannot be read any further, and every later
// call returns the same error.
func (d *Decoder) Next(chunk []byte) (ev Event, rest []byte, err error) {
	if d.failed != nil {
		return Event{}, chunk, d.failed
	}
	switch d.state {
	case inGreeting:
		return d.nextGreeting(chunk)
	case inHeader:
		return d.nextHeader(chunk)
	}
	// Reported by a call of its own, even for an empty body, and without needing more
	// bytes: a frame's end must be seen when its last byte is.
	if d.left == 0 {
		d.state = inHeader
		return Event{Kind: FrameEnd, Header: d.header}, chunk, nil
	}
	n := len(chunk)
	if n == 0 {
		return Event{}, nil, nil
	}
	if uint64(n) > d.left {
		n = int(d.left)
	}
	d.left -= uint64(n)
	d.offset += uint64(n)
	return Event{Kind: FrameBody, Header: d.header, Body: chunk[:n:n]}, chunk[n:], nil
}

// nextGreeting collects the greeting and checks it as it comes, so that another
// protocol is recognized by its first byte.
func (d *Decoder) nextGreeting(chunk []byte) (Event, []byte, error) {
	n := copy(d.greeting[d.held:], chunk)
	d.held += n
	d.offset += uint64(n)
	if err := d.greeting.check(d.held); err != nil {
		d.failed = err
		return Event{}, chunk[n:], err
	}
	if d.held < GreetingSize {
		return Event{}, nil, nil
	}
	d.state, d.held = inHeader, 0
	return Event{Kind: GreetingDone}, chunk[n:], nil
}

// nextHeader reads a frame's header, which may be cut anywhere. Only then is it copied
// to partial.
func (d *Decoder) nextHeader(chunk []byte) (Event, []byte, error) {
	src := chunk
	if d.held > 0 || len(chunk) < MaxHeader { // the header may be cut
		n := copy(d.partial[d.held:], chunk)
		src = d.partial[:d.held+n]
	}
	if len(src) == 0 {
		return Event{}, nil, nil
	}
	h := Header{Flags: Flags(src[0])}
	if len(src) < h.Len() {
		if err := d.checkFlags(h); err != nil {
			return Event{}, chunk, err
		}
		d.offset += uint64(len(src) - d.held)
		d.held = len(src)
		return Event{}, nil, nil
	}
	if h.Flags&Long == 0 {
		h.Size = uint64(src[1])
	} else {
		h.Size = binary.BigEndian.Uint64(src[1:])
	}
	used := h.Len() - d.held
	if err := d.accept(h); err != nil {
		return Event{}, chunk, err
	}
	d.offset += uint64(used)
	d.held = 0
	return Event{Kind: FrameStart, Header: h}, chunk[used:], nil
}

// accept makes h the current frame if its flags and size are allowed.
func (d *Decoder) accept(h Header) error {
	if err := d.checkFlags(h); err != nil {
		return err
	}
	limit := d.limits.FrameSize
	if h.Command() {
		limit = d.limits.CommandSize
	} else {
		d.frames++
	}
	switch {
	case h.Size >= 1<<63:
		return d.fail("frame of %d bytes: ZMTP allows less than 2^63", h.Size)
	case limit > 0 && h.Size > limit:
		return d.fail("frame of %d bytes, more than the limit of %d", h.Size, limit)
	case d.limits.Frames > 0 && d.frames > d.limits.Frames:
		return d.fail("message of more than %d frames", d.limits.Frames)
	}
	// The message's last frame: counted out already, as Between asks about frames that
	// are still to begin.
	if !h.Command() && !h.More() {
		d.frames = 0
	}
	d.header, d.left, d.state = h, h.Size, inBody
	return nil
}

func (d *Decoder) checkFlags(h Header) error {
	switch {
	case h.Flags&^(More|Long|Command) != 0:
		return d.fail("frame flags %#02x with reserved bits set", byte(h.Flags))
	case h.Command() && h.More():
		return d.fail("frame flags %#02x: a command cannot be part of a message", byte(h.Flags))
	}
	return nil
}

func (d *Decoder) fail(format string, args ...any) error {
	d.failed = &SyntaxError{d.offset - uint64(d.held), fmt.Sprintf(format, args...)}
	return d.failed
}

// Discard skips up to n bytes of the current frame's body that the caller does not
// have, because they were spliced, lost or never copied, and returns how many it
// skipped. If that was all that was left, the next call of Next (with whatever follows)
// reports FrameEnd. Outside of a body it returns 0.
func (d *Decoder) Discard(n uint64) uint64 {
	if d.state != inBody || d.failed != nil {
		return 0
	}
	n = min(n, d.left)
	d.left -= n
	d.offset += n
	return n
}

// Left returns how many bytes of the current frame's body are still to come, 0 outside
// of a frame.
func (d *Decoder) Left() uint64 { return d.left }

// Greeting returns the greeting, complete after GreetingDone. The decoder owns it.
func (d *Decoder) Greeting() *Greeting { return &d.greeting }

// Offset returns how many bytes were consumed since the stream's start.
func (d *Decoder) Offset() uint64 { return d.offset }

// Between reports whether the stream stands between two messages: no part of a
// greeting, frame or unfinished message is pending. A stream that ends elsewhere was
// cut off.
func (d *Decoder) Between() bool {
	return d.state == inHeader && d.held == 0 && d.frames == 0
}
