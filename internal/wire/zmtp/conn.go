package zmtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A Config sets the socket type and identity that a [Conn] presents and the limits of
// the messages that it accepts.
type Config struct {
	SocketType string // "DEALER" or "ROUTER"
	Identity   []byte // at most 255 bytes; empty for none
	Limits     Limits // of received messages; zero fields take 4 GiB, 64 KiB and 64
}

// defaultLimits are those of a Conn whose Config has none. Memory grows only with what
// really arrives, whatever a frame's header claims.
var defaultLimits = Limits{FrameSize: 1 << 32, CommandSize: MaxCommand, Frames: 64}

// Peer is the other side's part of the handshake.
type Peer struct {
	Greeting   Greeting
	SocketType string
	Identity   []byte
}

// A PeerError is the reason that the peer gave, in an ERROR command, for ending the
// connection.
type PeerError struct{ Reason string }

func (e *PeerError) Error() string { return fmt.Sprintf("zmtp: the peer refused: %q", e.Reason) }

// Conn carries ZMTP messages over a connection. One goroutine may read while any number
// write: reading uses dec, in and command without a lock, and takes writing only to
// answer a PING. Deadlines are those of the connection underneath; a read or write that
// one cuts short leaves the stream unusable.
type Conn struct {
	nc   net.Conn
	peer Peer

	dec     Decoder
	in      []byte // bytes read and not decoded yet, a slice of inBuf
	inBuf   []byte
	command Gather // the command that is being received

	writing sync.Mutex  // guards out and vec, and keeps messages whole
	out     []byte      // small frames waiting for Flush
	vec     net.Buffers // reused by writev
}

const (
	readBuffer = 64 << 10
	// Bodies below this size are copied together into one write; larger ones are
	// written from the caller's memory.
	copyBelow = 8 << 10
	// Queued bytes that have a Queue write them out.
	flushAt = 64 << 10
)

// Handshake exchanges greeting and READY over nc and returns a Conn. With the NULL
// mechanism both sides do the same, so it serves dialing and accepting sides alike. It
// blocks until the peer has answered or ctx ends; then nc's deadline is in the past.
// The caller closes nc on an error, and bounds the time by ctx: a peer that accepts and
// says nothing would be waited for without end.
func Handshake(ctx context.Context, nc net.Conn, cfg Config) (*Conn, error) {
	if len(cfg.Identity) > 255 {
		return nil, fmt.Errorf("zmtp: identity of %d bytes, at most 255 are allowed", len(cfg.Identity))
	}
	c := &Conn{nc: nc, inBuf: make([]byte, readBuffer)}
	c.dec.limits = orDefault(cfg.Limits)

	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	err := c.handshake(cfg)
	if !stop() && ctx.Err() != nil {
		return nil, fmt.Errorf("zmtp: handshake with %s: %w", nc.RemoteAddr(), context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("zmtp: handshake with %s: %w", nc.RemoteAddr(), err)
	}
	return c, nil
}

func orDefault(l Limits) Limits {
	if l.FrameSize == 0 {
		l.FrameSize = defaultLimits.FrameSize
	}
	if l.CommandSize == 0 {
		l.CommandSize = defaultLimits.CommandSize
	}
	if l.Frames == 0 {
		l.Frames = defaultLimits.Frames
	}
	return l
}

// handshake writes greeting and READY without waiting in between, which is allowed
// since NULL is all that it offers, and reads the peer's. That saves a round trip for
// each connection.
func (c *Conn) handshake(cfg Config) error {
	greeting := NewGreeting(1, len(cfg.Identity))
	hello := AppendReady(bytes.Clone(greeting[:]), cfg.SocketType, cfg.Identity)
	if _, err := c.nc.Write(hello); err != nil {
		return err
	}
	for ready := false; !ready; {
		ev, err := c.nextEvent()
		if err != nil {
			return noEOF(err)
		}
		switch {
		case ev.Kind == GreetingDone:
			c.peer.Greeting = *c.dec.Greeting()
			// Checked before anything else is read: with another mechanism the frames
			// that follow mean something else.
			if m := c.peer.Greeting.Mechanism(); m != "NULL" {
				return fmt.Errorf("the peer requires the %q mechanism; only NULL is supported", m)
			}
		case ev.Kind == FrameStart && !ev.Header.Command():
			return errors.New("the peer sent a message before READY")
		case ev.Kind == FrameStart:
			c.command.Start()
		case ev.Kind == FrameBody:
			c.command.Add(ev.Body)
		case ev.Kind == FrameEnd:
			if ready, err = c.onHandshakeCommand(); err != nil {
				return err
			}
		}
	}
	return nil
}

// onHandshakeCommand handles a command that came before READY, or READY itself. RFC 23
// allows no others here.
func (c *Conn) onHandshakeCommand() (ready bool, err error) {
	name, data, err := ParseCommand(c.command.Bytes())
	if err != nil {
		return false, err
	}
	switch string(name) {
	case CommandReady:
		r, err := ParseReady(data)
		if err != nil {
			return false, err
		}
		c.peer.SocketType = string(r.SocketType)
		c.peer.Identity = bytes.Clone(r.Identity)
		return true, nil
	case CommandError:
		return false, peerError(data)
	}
	return false, fmt.Errorf("the peer sent command %q before READY", name)
}

func peerError(data []byte) error {
	reason, err := ParseError(data)
	if err != nil {
		return err
	}
	return &PeerError{string(reason)}
}

// Peer returns the other side's greeting and READY properties.
func (c *Conn) Peer() *Peer { return &c.peer }

// nextEvent returns the next event, reading more bytes as needed. An error that came
// together with bytes is returned by the read after these.
func (c *Conn) nextEvent() (Event, error) {
	for {
		ev, rest, err := c.dec.Next(c.in)
		c.in = rest
		if err != nil || ev.Kind != NeedMore {
			return ev, err
		}
		// The buffer is about to be overwritten, and an unfinished command may lie in
		// it.
		c.command.Keep()
		n, err := c.nc.Read(c.inBuf)
		c.in = c.inBuf[:n]
		if n == 0 && err != nil {
			return Event{}, err
		}
	}
}

// noEOF turns an EOF inside of something into an unexpected one.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
