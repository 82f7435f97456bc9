package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/proxy/reason"
)

// ErrPassed is that both directions of a connection stand between two messages, and
// its link has ended: [Conn.Run] has left the job's process its connection, and another
// Conn, here or in another proxy, can go on with it over another link.
var ErrPassed = errors.New("the connection goes on over another link")

// errStands is that a direction stands between two messages for good.
var errStands = errors.New("the direction stands")

// Passing is what a Conn needs that can go on over another link in order: each end
// stops reading the process's messages between two of them, and says so in a command
// after the last; when the other's has come, too, nothing is on its way. Both proxies
// must know of it, and the connection have a codec: without one nobody knows where a
// message begins.
type Passing struct {
	// Of a Conn that goes on: Begun says that both streams had begun on a link before;
	// there is no greeting any more. Left is what was read of the process's messages
	// and not sent, Ready the body of its READY command. Run sets Left and Ready again.
	Begun            bool
	Left             []byte
	Ready            []byte
	asked            atomic.Bool  // the direction to Far is to stop
	raw              atomic.Bool  // a direction has no messages
	upStands, stands atomic.Bool  // the direction to Far, and the other one
	holds, theirs    atomic.Int64 // nanoseconds: the arguments of [Conn.Pass] here, and at the other end
}

// maxReady is the longest READY command that is kept for the next link's codecs.
const maxReady = 512

// HeldFor is for how long the ends are held that are handed over, at most.
func (p *Passing) HeldFor() time.Duration {
	return time.Duration(max(p.holds.Load(), p.theirs.Load()))
}

// Halter is a job's connection that reads ahead of the relay.
type Halter interface {
	// Halt has Read fail where the stream stands between two messages and all that was
	// looked at has been read; Halted reports whether it did.
	Halt()
	Halted() bool
}

// Passes reports whether Pass may end the connection's link in order: as far as is
// known both directions are streams of messages, and neither has ended.
func (c *Conn) Passes() bool {
	return c.Passing != nil && c.Sender != nil && c.Receiver != nil && !c.Passing.raw.Load() && !c.jobEnded.Load() && !c.farEnded.Load()
}

// Pass has Run return ErrPassed as soon as both ends stand between two messages. holds
// is for how long this end is held for the next proxy; 0: this one stays.
func (c *Conn) Pass(holds time.Duration) {
	if holds > 0 {
		c.Passing.holds.Store(int64(holds))
	}
	if h, ok := c.Job.(Halter); ok {
		h.Halt()
		return
	}
	c.Passing.asked.Store(true)
	c.Wake()
}

// passed reports whether the connection can go on, once Run's directions have returned:
// one stands, and the other one does or has ended, which it does again.
func (c *Conn) passed() bool {
	if c.Passing == nil {
		return false
	}
	up, down := c.Passing.upStands.Load(), c.Passing.stands.Load()
	return (up || c.jobEnded.Load()) && (down || c.farEnded.Load()) && (up || down)
}

// Passed reports whether the connection can go on over another link, once Run has
// returned.
func (c *Conn) Passed() bool { return c.failed == nil && c.passed() }

// leave ends the link and leaves the process its connection.
func (c *Conn) leave() error {
	c.Far.Close()
	if err := errors.Join(c.Job.SetDeadline(time.Time{}), c.Job.SetReadDeadline(time.Time{})); err != nil {
		return reason.Errorf(reason.ResetByJob, "going on over another link: %w", err)
	}
	return ErrPassed
}

// passDue reports whether the direction to Far is to stop now.
func (d *direction) passDue() bool {
	return d.passing != nil && d.side.between() && d.passing.asked.Load() && (d.gatherer == nil || d.gatherer.Rests())
}

// halted reports whether an error of reading is that the job's connection was halted.
func (d *direction) halted(err error) bool {
	h, ok := d.src.(Halter)
	return err != nil && ok && d.passing != nil && h.Halted()
}

// stand ends the direction to Far between two messages, and tells the other end.
func (d *direction) stand() error {
	if _, ahead := d.src.(Halter); !d.side.between() || ahead && d.in.r < d.in.w {
		return reason.Errorf(reason.Internal, "a connection is to go on over another link in the middle of a message")
	}
	p := d.passing
	p.Left = bytes.Clone(d.in.bytes())
	d.in.r = d.in.w
	d.out.taken(appendCommand(d.out.space(), flagPass, binary.BigEndian.AppendUint32(nil, uint32(time.Duration(p.holds.Load()).Milliseconds()))))
	if err := d.flush(); err != nil {
		return err
	}
	p.upStands.Store(true)
	return errStands
}

// heard takes in that the other end stands between two messages, once all that came
// before is with the process, and has this one do likewise.
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

// passCommand is the head of the command that says that a direction stands.
func (d *decoder) passCommand(head []byte) (verdict, error) {
	if d.passing == nil || len(head) != 4 {
		return verdict{}, reason.Errorf(reason.MalformedLink, "from the link: its end is announced in %d bytes, which was not agreed on", len(head))
	}
	d.passing.theirs.Store(int64(binary.BigEndian.Uint32(head)) * int64(time.Millisecond))
	return verdict{pass: true}, nil
}

// preload begins a direction with what was left of the link before.
func (in *input) preload(ctx context.Context, left []byte) error {
	if len(left) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, memoryPatience)
	defer cancel()
	b, err := in.memory.Borrow(ctx, len(left))
	if err != nil {
		return reason.Errorf(reason.Memory, "going on with a message of which %d bytes have come: %w", len(left), err)
	}
	in.buf, in.r, in.w = b, 0, copy(b, left)
	return nil
}

// sendLeft sends what was left of the link before where nothing is encoded.
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

// tellReady has the codecs of a further link shown which node sends, and notes it for
// the links after it.
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
