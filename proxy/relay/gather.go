package relay

import (
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// Gatherer takes messages of a direction before its [Sender] sees them, and has them
// sent later, perhaps with other values. It may be a [Greeter] and an [Aborter]. But for
// Abort its methods are called by the direction's goroutine.
type Gatherer interface {
	// Wants is [Holder.Hold].
	Wants(m *Message) bool
	// Take is shown each message that can be encoded, in order. What it takes it copies.
	Take(m *Message) Taken
	// Due returns the next message that is to be sent now; no frames: none is. They
	// stay what they are until Written. An error ends the connection.
	Due() (frames [][]byte, err error)
	// Written says that all that Due returned, and Take passed, has been written.
	Written()
	// Waiting reports whether messages that were taken are still to be sent.
	Waiting() bool
	// Rests reports whether the stream can go on over another link, where the Gatherer is
	// the same, or there is none and it has nothing left.
	Rests() bool
	// Wait returns when Due may say something else than when it was last called, or with
	// an error after Abort. The link's Wake has Due called where nobody waits.
	Wait() error
}

// Taken is what a [Gatherer] does with a message.
type Taken int

// What it does.
const (
	Passes Taken = iota // it goes on as it is
	Took                // it is the Gatherer's
	Waits               // it is to be shown again once Due has returned what comes before
)

// Hearer sees the meta of each message that comes for the job's process, before the
// process gets it. It may be a [Greeter].
type Hearer interface {
	Hear(meta []byte)
}

// gather is what an encoder has of a [Gatherer].
type gather struct {
	gatherer Gatherer // nil: there is none
	unheld   bool     // there was no memory for the message that comes next
}

// isWaiting reports whether messages that were taken are still to be sent.
func (g *gather) isWaiting() bool { return g.gatherer != nil && g.gatherer.Waiting() }

// due moves the messages that are due to out, and reports whether out is full.
func (e *encoder) due(out *output) (full bool, err error) {
	if e.gatherer == nil || !e.between() {
		return false, nil
	}
	for !out.full() {
		frames, err := e.gatherer.Due()
		if err != nil {
			return false, &sideError{write: true, err: err}
		}
		if len(frames) == 0 {
			return false, nil
		}
		e.frames = append(e.frames[:0], frames...)
		e.show(false, 0)
		e.shown.Forced = true
		if e.sender == nil || !e.encode(out) {
			for i, f := range e.frames {
				out.taken(zmtp.AppendHeader(out.space(), zmtp.FrameHeader(len(f), i < len(e.frames)-1)))
				out.lend(f)
			}
		}
	}
	return true, nil
}

// take shows the message that was scanned to the gatherer, if there is one.
func (e *encoder) take() Taken {
	if e.gatherer == nil {
		return Passes
	}
	return e.gatherer.Take(&e.shown)
}

// hears shows a hearer the meta of a message that comes for the process.
func (d *decoder) hears(frames [][]byte, plain uint32) {
	if d.hearer == nil || len(frames) == 0 || plain&1 != 0 {
		return
	}
	if _, ok := pslite.ParseIdentity(frames[0]); ok && len(frames) > 1 {
		frames = frames[1:]
	}
	d.hearer.Hear(frames[0])
}

// hearPlain shows a hearer the first frame of a message where that comes from the link
// as it is; b begins with its header, of n bytes. It reports false where more of it has
// to come.
func (d *decoder) hearPlain(b []byte, h zmtp.Header, n int) bool {
	first := !d.inside && len(d.frames) == 0 || len(d.frames) > 0 && d.next == 0
	if d.hearer == nil || !first || h.Size > maxMeta {
		return true
	}
	if len(b) < n+int(h.Size) {
		return false
	}
	d.hearer.Hear(b[n : n+int(h.Size)])
	return true
}

// hearReady shows a hearer a READY command.
func (d *decoder) hearReady(body []byte) {
	g, ok := d.hearer.(Greeter)
	if !ok {
		return
	}
	if name, data, err := zmtp.ParseCommand(body); err == nil && string(name) == zmtp.CommandReady {
		if r, err := zmtp.ParseReady(data); err == nil {
			g.Ready(r)
		}
	}
}

// sendGathered sends what was taken of a stream that has ended.
func (d *direction) sendGathered() error {
	e, ok := d.side.(*encoder)
	if !ok {
		return nil
	}
	for {
		_, err := e.due(&d.out)
		if flushed := d.flush(); flushed != nil {
			return flushed
		}
		switch {
		case err != nil:
			return err
		case !e.isWaiting():
			return nil
		}
		if err := d.gatherer.Wait(); err != nil {
			return &sideError{write: true, err: err}
		}
	}
}
