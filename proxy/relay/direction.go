package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/keep"
)

// Flow counts one direction of a connection. The direction's goroutine writes it, any may read it.
type Flow struct {
	messages, encoded, unheld atomic.Uint64
	in, out, codecNanos       atomic.Uint64
	lane, spared              atomic.Uint64
	inMessage                 atomic.Bool
	unread                    atomic.Uint32 // 1 + the [pslite.Fork] of a stream whose messages are of no dialect
}

// FlowCounts are a [Flow]'s figures at one moment. In and Out count bytes read and written by this
// process; bytes that the kernel splices are added when the splice ends.
type FlowCounts struct {
	Messages   uint64 // of PS-lite, on connections with a codec
	Encoded    uint64 // of Messages
	Unheld     uint64 // messages not encoded because memory was at its bound
	In, Out    uint64 // bytes
	Lane       uint64 // bytes that went over another connection, which several links share
	Spared     uint64 // bytes of values that were not sent: another link had brought them
	CodecNanos uint64 // spent in the codec, estimated from one message in 16
	InMessage  bool   // a message is unfinished
	// Unread means that the first message was of no known dialect, so the stream passes unchanged.
	// Fork is the fork of PS-lite whose message it was, if that is known.
	Unread bool
	Fork   pslite.Fork
}

// Counts returns the current figures. They are read one by one, not at one instant.
func (f *Flow) Counts() FlowCounts {
	unread := f.unread.Load()
	return FlowCounts{
		Unread: unread > 0, Fork: pslite.Fork(max(unread, 1) - 1),
		Messages: f.messages.Load(), Encoded: f.encoded.Load(), Unheld: f.unheld.Load(),
		In: f.in.Load(), Out: f.out.Load(), CodecNanos: f.codecNanos.Load(), InMessage: f.inMessage.Load(),
		Lane: f.lane.Load(), Spared: f.spared.Load(),
	}
}

// noteUnread notes that the stream's first message is of no known dialect.
func (f *Flow) noteUnread(why error) {
	fork := pslite.NoFork
	var known *pslite.ForkError
	if errors.As(why, &known) {
		fork = known.Fork
	}
	f.unread.Store(1 + uint32(fork))
}

// sideError is an error of reading from or writing to a socket, as opposed to one of content.
// [Conn.ended] derives from it which end is to blame.
type sideError struct {
	write bool
	err   error
}

func (e *sideError) Error() string { return e.err.Error() }
func (e *sideError) Unwrap() error { return e.err }

// side transforms a direction's stream after the greeting; encoder, decoder and asItIs are sides.
// All calls come from the direction's goroutine.
type side interface {
	// step consumes input and adds output; see [encoder.step].
	step(in *input, out *output) (verdict, error)
	// moved is called after n bytes of a body went from src to dst in the kernel, as verdict.move
	// asked.
	moved(n uint64, out *output) error
	// noRoom is called where verdict.need exceeds the buffer and the bound forbids a larger one.
	noRoom(ctx context.Context, in *input, need int) error
	// rest consumes what is buffered when the source has ended.
	rest(in *input, out *output) error
	// between reports whether the stream is between two messages.
	between() bool
	written() // called when all output has been written
	close()
}

// direction carries one direction of a connection through a side. It belongs to one goroutine,
// except for flow, ended, hold, waking and passing, which synchronize themselves.
type direction struct {
	src, dst net.Conn
	side     side
	flow     *Flow
	in       input
	out      output
	greeting zmtp.Decoder
	greeted  bool
	ended    *atomic.Bool // set when src has ended, if not nil
	// Where the destination is the job's process:
	hold  *hold
	whole bool // the process has got whole messages so far
	// Where the sender has messages of its own:
	initiator Initiator
	gatherer  Gatherer // nil: none
	waking    *waking
	// Where a stage decides about messages:
	stage  Stage       // nil: none
	told   func() bool // the source was sent the end of its own stream
	silent bool        // the source sends nothing more
	// Of a connection that is kept:
	keeping *Keeping     // nil: it is not
	window  *keep.Window // of the direction to Far
	skip    uint64       // bytes still to come that the destination has got already
	handed  int          // bytes beyond those that were written over this link, or are held
	// Of a connection that may go on over another link in order:
	passing *Passing // nil: it may not
	heardBy *Conn    // in the direction to Job: the Conn whose other direction is to stop too
	left    []byte   // bytes read over the previous link and not sent
}

// spliceFrom is the number of outstanding bytes of a body from which on a splice is worthwhile.
const spliceFrom = 64 << 10

// run carries the stream to its end, and passes that on. Each round lets the side consume what is
// buffered, writes the output, does what the verdict asks, and reads more.
func (d *direction) run(ctx context.Context, m *Memory) error {
	defer d.side.close()
	defer d.in.release()
	if err := d.in.init(d.src, m); err != nil {
		return err
	}
	d.out.conn = d.dst
	d.in.window = d.window
	if err := d.in.preload(ctx, d.left); err != nil {
		return err
	}
	if !d.greeted {
		isZMTP, err := d.greet()
		switch {
		case err != nil:
			return err
		case !isZMTP:
			return d.splice()
		}
		d.greeted = true
	}
	for {
		v, err := d.side.step(&d.in, &d.out)
		d.flow.inMessage.Store(!d.side.between() || d.in.r < d.in.w || d.gatherer != nil && d.gatherer.Waiting())
		// Also after an error of the side: what came before the fault is good, and its receiver may
		// need it.
		if flushed := d.flush(); flushed != nil {
			return flushed
		}
		switch {
		case err != nil:
			return err
		case v.pass:
			return d.heard(d.heardBy)
		case v.own:
			if err := d.sendOwn(); err != nil {
				return err
			}
			continue
		case v.flush:
			continue
		case v.wait:
			// What has to go first may wait for an answer over a connection that is about to go on
			// over another link as well, and stands already.
			if d.passDue() {
				return d.stand()
			}
			if err := d.awaitTurn(); err != nil {
				return err
			}
			continue
		case v.raw:
			return d.splice()
		case v.move >= spliceFrom && d.in.raw != nil && !d.holds() && d.skip == 0:
			if _, bare := d.dst.(*net.TCPConn); bare {
				short, err := d.move(v.move)
				if err != nil {
					return err
				}
				if !short {
					continue
				}
			}
		case v.need > 0 && !d.in.room(v.need):
			if err := d.side.noRoom(ctx, &d.in, v.need); err != nil {
				return err
			}
			if d.in.r < d.in.w && d.in.w-d.in.r == len(d.in.buf) {
				continue // the buffer is full and was not replaced: the message passes
			}
		}
		if d.heardBy == nil && d.passDue() {
			return d.stand()
		}
		if err := d.await(); err != nil {
			return d.end(err)
		}
	}
}

// greet passes the greeting on as it comes, and reports whether it is that of a stream whose frames
// can be read. Both ends of a link see the same bytes and reach the same verdict at the same byte,
// so they need not agree on it.
func (d *direction) greet() (isZMTP bool, err error) {
	for {
		if err := d.fill(); err != nil {
			if errors.Is(err, io.EOF) {
				return false, nil // splice passes the end on
			}
			return false, err
		}
		chunk := d.in.bytes()
		ev, rest, err := d.greeting.Next(chunk)
		if err == nil && ev.Kind == zmtp.NeedMore {
			d.out.lend(chunk)
			d.in.r = d.in.w
			if err := d.flush(); err != nil {
				return false, err
			}
			continue
		}
		if err == nil {
			d.out.lend(chunk[:len(chunk)-len(rest)])
			d.in.r = d.in.w - len(rest)
			major, _ := d.greeting.Greeting().Version()
			isZMTP = major == 3 && d.greeting.Greeting().Mechanism() == "NULL"
		}
		return isZMTP, d.flush()
	}
}

// fill reads more, and counts it. io.EOF is returned as it is, other errors as a sideError.
func (d *direction) fill() error {
	before := d.in.w - d.in.r
	err := d.in.fill()
	d.flow.in.Add(uint64(d.in.w - d.in.r - before))
	if err != nil && !errors.Is(err, io.EOF) {
		return &sideError{err: err}
	}
	return err
}

// flush writes all output, or hands it to the hold. It returns once the memory that was lent to the
// output may be reused.
func (d *direction) flush() error {
	n := d.out.waiting
	if n == 0 {
		return nil
	}
	if d.skip > 0 {
		if n = d.skipped(); n == 0 {
			d.out.reset()
			d.side.written()
			return nil
		}
	}
	d.handed += n
	if d.hold != nil && d.hold.keep(&d.out, d.whole) {
		d.side.written()
		return nil
	}
	if err := d.flushHeld(); err != nil {
		return err
	}
	if err := d.out.flush(); err != nil {
		return &sideError{write: true, err: err}
	}
	d.flow.out.Add(uint64(n))
	d.whole = d.greeted && d.side.between()
	d.side.written()
	d.wrote(n)
	return nil
}

// holds reports whether held bytes are still to be written to the process.
func (d *direction) holds() bool { return d.hold != nil && d.hold.holds() }

// flushHeld writes what was held, which comes before the current output.
func (d *direction) flushHeld() error {
	if d.hold == nil {
		return nil
	}
	if err := d.hold.flush(d.dst, d.flow, d.keeping); err != nil {
		return &sideError{write: true, err: err}
	}
	return nil
}

// move moves n bytes of a body in the kernel. For a kept connection the window is suspended
// meanwhile: the bytes leave the kernel's queue and cannot be sent again, so a link that breaks
// during the splice breaks the connection. It returns true if there were fewer: the next read
// finds the end of the stream.
func (d *direction) move(n uint64) (short bool, err error) {
	if d.window != nil {
		d.window.Pass()
	}
	done, err := io.Copy(d.dst, &io.LimitedReader{R: d.src, N: int64(n)})
	d.flow.in.Add(uint64(done))
	d.flow.out.Add(uint64(done))
	d.handed += int(done)
	if d.window != nil {
		d.window.Passed(done)
	}
	if err != nil {
		return false, spliceError(err)
	}
	if done < int64(n) {
		return true, d.side.moved(uint64(done), &d.out)
	}
	err = d.side.moved(n, &d.out)
	d.whole = d.greeted && d.out.waiting == 0 && d.side.between()
	d.wrote(int(done))
	return false, err
}

// splice writes what is buffered, and has the kernel carry the rest of the stream. It returns at
// its end.
func (d *direction) splice() error {
	if d.keeping != nil {
		return d.copy()
	}
	if d.passing != nil {
		d.passing.raw.Store(true)
	}
	d.flow.inMessage.Store(false)
	d.out.lend(d.in.bytes())
	d.in.r = d.in.w
	if err := d.flush(); err != nil {
		return err
	}
	d.in.release()
	// What is held comes before the bytes that the kernel would move.
	if d.hold != nil {
		d.hold.await()
	}
	if err := d.flushHeld(); err != nil {
		return err
	}
	return splice(d.dst, d.src, d.flow, d.ended)
}

// end passes the stream's end on, after everything that is still buffered, gathered or held. For an
// error other than io.EOF it does nothing and returns it.
func (d *direction) end(cause error) error {
	if !errors.Is(cause, io.EOF) {
		return cause
	}
	if err := d.keptEnd(); err != nil {
		return err
	}
	if err := d.endOwn(); err != nil {
		return err
	}
	if err := d.side.rest(&d.in, &d.out); err != nil {
		return err
	}
	if err := d.flush(); err != nil {
		return err
	}
	if d.ended != nil {
		d.ended.Store(true)
	}
	// What is held comes before the end of the stream.
	if d.hold != nil {
		d.hold.await()
	}
	if err := d.flushHeld(); err != nil {
		return err
	}
	if err := closeWrite(d.dst); err != nil {
		return err
	}
	return d.keptClosed()
}
