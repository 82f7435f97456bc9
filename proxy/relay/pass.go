package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
)

// ErrPassed means that both directions of a connection stand between two messages, and the link has
// ended. [Conn.Run] has left the job's process its connection, and another Conn, here or in another
// proxy, can go on with it over another link.
var ErrPassed = errors.New("the connection continues over another link")

// errStands ends a direction that stands between two messages for good. It is not a failure.
var errStands = errors.New("the direction is quiesced")

// Passing is what a Conn needs to change links in order. Each end stops reading its process's
// messages between two of them, and announces that by a command after the last one. Once an end has
// sent its own command and received the other's, nothing is in flight on the link. Both proxies
// must support it, and the connection must have a codec: without one it is unknown where a message
// begins.
type Passing struct {
	// For a Conn that goes on: Begun means that both streams began over an earlier link, so no
	// greeting comes. Left is what was read of the process's messages and not sent, Ready the body
	// of its READY command. Judged means that the [Stage] has let the message at the start of Left
	// pass. Run sets Left, Ready and Judged again before it returns.
	Begun            bool
	Left             []byte
	Ready            []byte
	Judged           bool
	asked            atomic.Bool  // the direction to Far is to stop
	raw              atomic.Bool  // a direction turned out to have no messages
	upStands, stands atomic.Bool  // the direction to Far, and the one to Job
	holds, theirs    atomic.Int64 // nanoseconds: the argument of [Conn.Pass] here, and at the other end
}

// maxReady is the maximum size of a READY command that is kept for the codecs of the next link.
const maxReady = 512

// HeldFor returns how long the two ends of the connection may stay held for the next proxy.
func (p *Passing) HeldFor() time.Duration {
	return time.Duration(max(p.holds.Load(), p.theirs.Load()))
}

// Passes reports whether Pass can end the link in order: as far as is known, both directions are
// streams of messages, and neither has ended.
func (c *Conn) Passes() bool {
	return c.Passing != nil && c.Sender != nil && c.Receiver != nil && !c.Passing.raw.Load() && !c.jobEnded.Load() && !c.farEnded.Load()
}

// Pass has Run return ErrPassed as soon as both ends stand between two messages. holds is for how
// long the process behind this end may be held for the next proxy; 0: this proxy stays.
func (c *Conn) Pass(holds time.Duration) {
	if holds > 0 {
		c.Passing.holds.Store(int64(holds))
	}
	c.Passing.asked.Store(true)
	c.Wake()
}

// passed reports whether the connection can go on, once both directions have returned: at least one
// stands, and the other stands too or has ended. A stream that has ended ends again over the next
// link.
func (c *Conn) passed() bool {
	if c.Passing == nil {
		return false
	}
	up, down := c.Passing.upStands.Load(), c.Passing.stands.Load()
	return (up || c.jobEnded.Load()) && (down || c.farEnded.Load()) && (up || down)
}

// Passed reports whether the connection can go on over another link. It may be called once Run has
// returned.
func (c *Conn) Passed() bool { return c.failed == nil && c.passed() }

// leave ends the link and leaves the process its connection, without deadlines.
func (c *Conn) leave() error {
	c.Far.Close()
	if err := errors.Join(c.Job.SetDeadline(time.Time{}), c.Job.SetReadDeadline(time.Time{})); err != nil {
		return reason.Errorf(reason.ResetByJob, "going on over another link: %w", err)
	}
	return ErrPassed
}

// passDue reports whether the direction to Far has to stop now.
func (d *direction) passDue() bool {
	return d.passing != nil && d.canStand() && d.passing.asked.Load() && (d.gatherer == nil || d.gatherer.Rests())
}

// canStand reports whether the direction to Far is between two messages. A message that the stage
// has let pass counts as begun, unless it waits behind messages that the gatherer has: those may
// wait for a connection that stands already.
func (d *direction) canStand() bool {
	if d.side.between() {
		return true
	}
	e, ok := d.side.(*encoder)
	return ok && e.fate == toPass && !e.inside && e.left == 0 && e.isWaiting()
}

// stand ends the direction to Far between two messages, and announces that to the other end. What
// was read of messages that come next is kept in Left. The sender's own messages go before: they
// exist nowhere else, and the next link has another sender. The stage gets back what waits of its
// own.
func (d *direction) stand() error {
	if !d.canStand() {
		return reason.Errorf(reason.Internal, "a connection was moved to another link in the middle of a message")
	}
	if d.initiator != nil {
		if err := d.initiate(); err != nil {
			return err
		}
	}
	p := d.passing
	if e, ok := d.side.(*encoder); ok {
		p.Judged = e.fate == toPass
		if len(e.pending) > 0 {
			d.stage.Sent(e.pending, 0)
			e.pending = nil
		}
	}
	p.Left = bytes.Clone(d.in.bytes())
	d.in.r = d.in.w
	d.out.taken(appendCommand(d.out.space(), flagPass, binary.BigEndian.AppendUint32(nil, uint32(time.Duration(p.holds.Load()).Milliseconds()))))
	if err := d.flush(); err != nil {
		return err
	}
	p.upStands.Store(true)
	return errStands
}

// heard handles the other end's announcement, once everything that came before it is with the
// process, and has the direction to Far of c stop likewise.
func (d *direction) heard(c *Conn) error {
	if d.in.r < d.in.w {
		return reason.Errorf(reason.MalformedLink, "from the link: %d bytes after its end", d.in.w-d.in.r)
	}
	if d.hold != nil {
		d.hold.await()
	}
	if err := d.flushHeld(); err != nil {
		return err
	}
	d.passing.stands.Store(true)
	c.Pass(0)
	return errStands
}

// passCommand handles the command by which the other end announces that its direction stands. The
// head is the time, in milliseconds, for which it may be held.
func (d *decoder) passCommand(head []byte) (verdict, error) {
	if d.passing == nil || len(head) != 4 {
		return verdict{}, reason.Errorf(reason.MalformedLink, "from the link: its end is announced in %d bytes, which was not agreed on", len(head))
	}
	d.passing.theirs.Store(int64(binary.BigEndian.Uint32(head)) * int64(time.Millisecond))
	return verdict{pass: true}, nil
}

// preload fills the buffer with what the previous link has left.
func (in *input) preload(ctx context.Context, left []byte) error {
	if len(left) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, memoryPatience)
	defer cancel()
	in.begin()
	if class := classOf(len(left)); class > baseClass {
		if err := in.memory.bound.Acquire(ctx, 1<<class); err != nil {
			return reason.Errorf(reason.Memory, "going on with a message of which %d bytes have come: %w", len(left), err)
		}
		in.replace(class, in.memory.bound)
	}
	in.w = copy(in.buf, left)
	return nil
}

// sendLeft sends what the previous link has left, where nothing is encoded.
func (c *Conn) sendLeft() error {
	if c.Passing == nil || len(c.Passing.Left) == 0 {
		return nil
	}
	if _, err := c.Far.Write(c.Passing.Left); err != nil {
		return &sideError{write: true, err: err}
	}
	c.Passing.Left = nil
	return nil
}

// tellReady shows the READY command that an earlier link has seen to the codecs of this one: the
// process sends it once. It also has the command stored for the next link.
func (e *encoder) tellReady(k *Keeping, p *Passing) {
	if k == nil && p == nil {
		return
	}
	var before []byte
	if k != nil {
		before = k.Window.Page().Ready()
	}
	if p != nil && len(p.Ready) > 0 {
		before = p.Ready
	}
	e.ready = func(body []byte) {
		if k != nil {
			k.Window.Page().SetReady(body)
		}
		if p != nil && len(body) <= maxReady {
			p.Ready = bytes.Clone(body)
		}
	}
	if len(before) > 0 {
		e.greet(before)
	}
}
