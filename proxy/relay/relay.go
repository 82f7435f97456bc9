// Package relay carries the bytes of one connection between the job's process and the link to
// another proxy.
//
// Without a codec, or where the stream turns out not to be PS-lite's, bytes pass as they are, moved
// by the kernel (splice). With a codec each direction has a [Sender] at one end, which is shown the
// messages and may encode them, and a [Receiver] at the other. An encoded message travels as a ZMTP
// command that only proxies see, followed, where the sender left frames as they are, by a ZMTP
// message of those:
//
//	command "PS": flags (1 byte: 1 = frames follow, 2 = no more ZMTP, 4 = the stream
//	goes on over another link), head
//
// All other frames, commands among them, pass in order and unchanged. The output at the far end is
// byte for byte the input here.
//
// # Structure
//
// A [Conn] has two directions, each a goroutine with a [direction]: up, from the job's process to
// the link, and down, from the link to the process. A direction reads into an input (buffer.go),
// has its side consume what it can, an encoder (encode.go, scan.go) or a decoder (decode.go), and
// writes the output (output.go). Sides are state machines over buffers: they do no I/O, and tell
// the direction by a verdict what has to happen next.
//
// What a connection may have beside: a [Stage] decides where its messages go (stage.go), a
// [Keeping] lets it survive a broken link (keep.go), a [Passing] lets it change links between two
// messages (pass.go), a [Gatherer] delays and changes messages (gather.go), and a hold keeps
// messages from the process for a while (hold.go). All of them see messages that were parsed and
// decoded once.
//
// # Memory
//
// A direction holds 64 KiB of buffer while it has unconsumed bytes, and none while it waits for
// bare TCP. Larger buffers count in a [Memory], which many connections share. No message has to be
// held whole to pass: without memory it passes unencoded. Only an encoded message waits for memory,
// and one whose keys a stage has to see.
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

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/payoff"
)

// Conn is one relayed connection: its two halves, and what was agreed for it. The exported fields
// are set before [Conn.Run] and not changed afterwards; methods may be called by any goroutine.
type Conn struct {
	Job net.Conn // to the job's process, bare TCP
	Far net.Conn // to the other proxy, or to the real destination
	// Sender and Receiver are both nil where there is nothing to do.
	Sender   Sender
	Receiver Receiver
	Observer Observer // of the direction to Far; nil: none
	Gatherer Gatherer // of the direction to Far, where there is a Sender; nil: none
	Hearer   Hearer   // of the direction to Job, where there is a Receiver; nil: none

	// Outbound and Inbound decide where messages go, those of the job's process and those for it;
	// nil: they go where they came for. Beside a Keeping there are none.
	Outbound, Inbound Stage

	// Payoff decides which messages to Far are encoded, among those that no rule asks to have
	// encoded; nil: all are.
	Payoff *payoff.Meter

	// Keeping is set where the connection can survive a broken link; nil: it cannot.
	Keeping *Keeping
	// Passing is set where the connection can change links in order; nil: it cannot.
	Passing *Passing

	ToFar, ToJob Flow

	waking    waking // of the direction to Far
	wakingJob waking // of the direction to Job, where there is an Inbound
	hold      hold   // of the direction to Job

	jobEnded, farEnded atomic.Bool // the stream from there has
	jobTold            atomic.Bool // see EndJob

	failing sync.Once // the first direction that fails, or Break, sets failed
	failed  error
}

// Run carries the connection until both directions have ended, and closes both halves. The end of
// one stream is passed on as such (half-close). An error of one direction, returned as a
// [*reason.Error], resets both halves, and so does the end of ctx.
//
// With [ErrBroken] and [ErrPassed] the half to the job's process stays open, with its deadlines
// cleared, and another Conn can go on with it. Memory is shared with other connections and may be
// used for as long as Run runs. Run may be called once.
func (c *Conn) Run(ctx context.Context, m *Memory) error {
	err := c.runDirections(ctx, m)
	c.detach()
	if !errors.Is(err, ErrPassed) && !errors.Is(err, ErrBroken) {
		c.closeStages()
	}
	return err
}

// runDirections is Run without the end of the stages.
func (c *Conn) runDirections(ctx context.Context, m *Memory) error {
	stop := context.AfterFunc(ctx, c.reset)
	defer stop()
	c.attach()
	var g sync.WaitGroup
	g.Go(func() { c.ended(c.up(ctx, m), true, reason.ResetByJob, reason.ResetByFarSide) })
	g.Go(func() { c.ended(c.down(ctx, m), false, reason.ResetByFarSide, reason.ResetByJob) })
	g.Wait()
	c.failing.Do(func() {}) // from here on a Break would hit the Conn that goes on with the process
	// No direction runs any longer; a goroutine of Release may still be writing what was held.
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
		// A socket that is closed with unread bytes in its queue is reset, and the peer could lose
		// data.
		if c.Keeping != nil { // closed with something unread, a connection is reset
			c.Keeping.Window.Off(keep.Over)
		}
		c.Far.Close()
		c.Job.Close()
	}
	return err
}

// up carries the direction from the job's process to the link.
func (c *Conn) up(ctx context.Context, m *Memory) (err error) {
	defer survive(&err)
	k := c.Keeping
	if c.Sender == nil && c.Observer == nil && c.Outbound == nil && c.Inbound == nil {
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
	if e.stage = c.Outbound; c.Inbound != nil {
		e.receptive = c.Inbound.Receptive
	}
	d := direction{src: c.Job, dst: c.Far, flow: &c.ToFar, side: e, ended: &c.jobEnded}
	if d.initiator, _ = c.Sender.(Initiator); d.initiator != nil || c.Passing != nil || c.Gatherer != nil || c.Outbound != nil {
		d.waking = &c.waking
	}
	d.gatherer, d.stage = c.Gatherer, c.Outbound
	d.told = func() bool { return c.farEnded.Load() || c.jobTold.Load() }
	if k != nil {
		d.keeping, d.window, d.greeted = k, k.Window, k.Begun
	}
	if d.passing = c.Passing; d.passing != nil && d.passing.Begun {
		d.greeted, d.left = true, d.passing.Left
		if d.passing.Judged {
			e.fate = toPass
		}
		d.passing.Left, d.passing.Judged = nil, false
	}
	e.tellReady(k, c.Passing)
	return d.run(ctx, m)
}

// down carries the direction from the link to the job's process.
func (c *Conn) down(ctx context.Context, m *Memory) (err error) {
	defer survive(&err)
	k := c.Keeping
	if c.Receiver == nil && c.Inbound == nil && c.Outbound == nil {
		if k == nil {
			return splice(c.Job, c.Far, &c.ToJob, &c.farEnded)
		}
		d := direction{src: c.Far, dst: c.Job, flow: &c.ToJob, ended: &c.farEnded, keeping: k, skip: k.Skip}
		return d.carryAsItIs(m)
	}
	side := newDecoder(c.Receiver, &c.ToJob)
	side.hearer = c.Hearer
	if side.stage = c.Inbound; c.Outbound != nil {
		side.receptive = c.Outbound.Receptive
	}
	d := direction{src: c.Far, dst: c.Job, flow: &c.ToJob, side: side, ended: &c.farEnded, hold: &c.hold}
	d.told = func() bool { return false }
	if d.stage = c.Inbound; d.stage != nil {
		d.waking = &c.wakingJob
	}
	if k != nil {
		d.keeping, d.skip, d.greeted = k, k.Skip, k.FarBegun
	}
	if side.passing = c.Passing; c.Passing != nil {
		d.passing, d.heardBy, d.greeted = c.Passing, c, d.greeted || c.Passing.Begun
	}
	return d.run(ctx, m)
}

// survive turns a panic into an error of this connection. Messages come from outside, and a fault
// that one brings to light must not end the connections of other jobs.
func survive(err *error) {
	if fault := recover(); fault != nil {
		*err = reason.Errorf(reason.Internal, "a fault of this program (please report it): %v\n%s", fault, debug.Stack())
	}
}

// ended resets both halves after a direction has failed, and stores the reason. Only the first
// failure counts: the other direction then fails because of the reset. reading and writing are the
// reasons for errors of the direction's source and destination.
//
// An error of a kept connection's link is different: it ends both directions, but leaves the
// process its connection.
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

// JobEnded reports whether the stream from the job's process has ended.
func (c *Conn) JobEnded() bool { return c.jobEnded.Load() }

// FarEnded reports whether the stream from Far has ended.
func (c *Conn) FarEnded() bool { return c.farEnded.Load() }

// reset ends the connection at once. Codecs and holds are released first: a direction that waits
// for one of them does not notice that its sockets were reset.
func (c *Conn) reset() {
	c.abort()
	c.hold.endHold()
	sock.Reset(c.Job)
	sock.Reset(c.Far)
}

// abort ends what codecs wait for, such as other connections.
func (c *Conn) abort() {
	if a, ok := c.Sender.(Aborter); ok {
		a.Abort()
	}
	if a, ok := c.Receiver.(Aborter); ok {
		a.Abort()
	}
}
