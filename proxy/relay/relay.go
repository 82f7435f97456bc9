// Package relay carries the bytes of one connection between the job's process
// and the link to another proxy.
//
// Bytes go through as they are, moved by the kernel (splice), unless a codec
// was agreed on for the link and the stream turns out to be PS-lite's. Then
// each direction has a [Sender] at one end, which is shown the messages and
// may encode them, and a [Receiver] at the other. An encoded message travels
// as a ZMTP command that only proxies see, followed, where the sender left
// frames as they are, by a ZMTP message of those:
//
//	command "PS": flags (1 byte: 1 = frames follow, 2 = no more ZMTP, 4 = the stream
//	goes on over another link), head
//
// All other frames, commands among them, pass in order and as they are. What
// comes out at the far end is byte for byte what went in.
package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/payoff"
	"github.com/psidecar/psidecar/proxy/reason"
)

// Conn is a connection in its two halves, and what was agreed for it.
type Conn struct {
	Job net.Conn // to the job's process, bare TCP
	Far net.Conn // to the other proxy, or to the real destination
	// Sender and Receiver are both nil where there is nothing to do.
	Sender   Sender
	Receiver Receiver
	Observer Observer // of the direction to Far; nil: none
	Gatherer Gatherer // likewise, where there is a Sender
	Hearer   Hearer   // of the direction to Job, where there is a Receiver; nil: none

	// Payoff decides which messages to Far are encoded, of those that nobody
	// wanted encoded by name; nil: all.
	Payoff *payoff.Meter

	// Keeping is set where the connection may go on over another link; nil: it may
	// not.
	Keeping *Keeping
	// Passing is set where the connection may go on over another link in order; nil: it
	// may not.
	Passing *Passing

	ToFar, ToJob Flow

	waking waking // of the direction to Far
	hold   hold   // of the direction to Job

	jobEnded, farEnded atomic.Bool // what comes from there

	failing sync.Once
	failed  error
}

// Run carries the connection until both directions have ended, and closes
// both halves. A direction's end is passed on as such; an error, which comes
// back as an [*reason.Error], resets both halves, and so does the context's end.
func (c *Conn) Run(ctx context.Context, m *Memory) error {
	stop := context.AfterFunc(ctx, c.reset)
	defer stop()
	var g sync.WaitGroup
	g.Go(func() { c.ended(c.up(ctx, m), true, reason.ResetByJob, reason.ResetByFarSide) })
	g.Go(func() { c.ended(c.down(ctx, m), false, reason.ResetByFarSide, reason.ResetByJob) })
	g.Wait()
	c.hold.endHold()
	c.hold.writers.Wait()
	err := c.failed
	if errors.Is(err, ErrBroken) && ctx.Err() == nil {
		stop()
		return errors.Join(err, c.Job.SetDeadline(time.Time{}))
	}
	if !stop() && ctx.Err() != nil {
		return reason.Errorf(reason.Stopped, "ended by the proxy: %w", context.Cause(ctx))
	}
	if err == nil && c.passed() {
		return c.leave()
	}
	if err == nil {
		if c.Keeping != nil { // closed with something unread, a connection is reset
			c.Keeping.Window.Off(keep.Over)
		}
		c.Far.Close()
		c.Job.Close()
	}
	return err
}

func (c *Conn) up(ctx context.Context, m *Memory) (err error) {
	defer survive(&err)
	k := c.Keeping
	if c.Sender == nil && c.Observer == nil {
		if err := c.sendLeft(); err != nil {
			return err
		}
		if k == nil {
			return splice(c.Far, c.Job, &c.ToFar, &c.jobEnded)
		}
		d := direction{src: c.Job, dst: c.Far, flow: &c.ToFar, ended: &c.jobEnded, keeping: k, window: k.Window}
		return d.carryAsItIs(m)
	}
	e := newEncoder(c.Sender, &c.ToFar)
	e.observer, e.gatherer = c.Observer, c.Gatherer
	e.payoff, e.far.conn = c.Payoff, c.Far
	d := direction{src: c.Job, dst: c.Far, flow: &c.ToFar, side: e, ended: &c.jobEnded}
	if d.initiator, _ = c.Sender.(Initiator); d.initiator != nil || c.Passing != nil || c.Gatherer != nil {
		d.waking = &c.waking
	}
	d.gatherer = c.Gatherer
	if k != nil {
		d.keeping, d.window, d.greeted = k, k.Window, k.Begun
	}
	if d.passing = c.Passing; d.passing != nil && d.passing.Begun {
		d.greeted, d.left = true, d.passing.Left
		d.passing.Left = nil
	}
	e.tellReady(k, c.Passing)
	return d.run(ctx, m)
}

func (c *Conn) down(ctx context.Context, m *Memory) (err error) {
	defer survive(&err)
	k := c.Keeping
	if c.Receiver == nil {
		if k == nil {
			return splice(c.Job, c.Far, &c.ToJob, &c.farEnded)
		}
		d := direction{src: c.Far, dst: c.Job, flow: &c.ToJob, ended: &c.farEnded, keeping: k, skip: k.Skip}
		return d.carryAsItIs(m)
	}
	side := newDecoder(c.Receiver, &c.ToJob)
	side.hearer = c.Hearer
	d := direction{src: c.Far, dst: c.Job, flow: &c.ToJob, side: side, ended: &c.farEnded, hold: &c.hold}
	if k != nil {
		d.keeping, d.skip, d.greeted = k, k.Skip, k.FarBegun
	}
	if side.passing = c.Passing; c.Passing != nil {
		d.passing, d.heardBy, d.greeted = c.Passing, c, d.greeted || c.Passing.Begun
	}
	return d.run(ctx, m)
}

// survive makes a panic, a fault of this program that some message brought to
// light, the error of the one connection that met it.
func survive(err *error) {
	if fault := recover(); fault != nil {
		*err = reason.Errorf(reason.Internal, "a fault of this program (please report it): %v\n%s", fault, debug.Stack())
	}
}

// ended resets both halves where a direction failed, and keeps why: reading or
// writing failed because of one or the other end. That of the direction which
// fails first counts; the other fails because of the reset.
func (c *Conn) ended(err error, up bool, reading, writing reason.Reason) {
	if err == nil || errors.Is(err, errStands) {
		return
	}
	c.failing.Do(func() {
		var side *sideError
		if c.Keeping != nil && isFar(err, up) {
			c.failed = fmt.Errorf("%w: %w", ErrBroken, err)
			c.broke()
			return
		}
		switch {
		case reason.Has(err):
			c.failed = err
		case errors.As(err, &side) && side.write:
			c.failed = reason.Errorf(writing, "writing: %w", err)
		case errors.As(err, &side):
			c.failed = reason.Errorf(reading, "reading: %w", err)
		default:
			c.failed = fmt.Errorf("relaying: %w", err)
		}
		c.reset()
	})
}

// JobEnded and FarEnded report whether what comes from there has ended.
func (c *Conn) JobEnded() bool { return c.jobEnded.Load() }

// FarEnded is likewise.
func (c *Conn) FarEnded() bool { return c.farEnded.Load() }

func (c *Conn) reset() {
	c.abort()
	c.hold.endHold()
	Reset(c.Job)
	Reset(c.Far)
}

// abort ends what codecs wait for.
func (c *Conn) abort() {
	if a, ok := c.Sender.(Aborter); ok {
		a.Abort()
	}
	if a, ok := c.Receiver.(Aborter); ok {
		a.Abort()
	}
	if a, ok := c.Gatherer.(Aborter); ok {
		a.Abort()
	}
}
