package relay

import (
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// Gatherer takes messages of a direction before its [Sender] sees them, and sends them later,
// possibly with other values. It comes after a [Stage], whose own messages it sees too. It may be a
// [Greeter]. All methods are called by the direction's goroutine.
type Gatherer interface {
	// Wants is [Holder.Hold].
	Wants(m *Message) bool
	// Take is shown each message that can be encoded, in order. It must copy what it takes.
	Take(m *Message) Taken
	// Due returns the frames of the next message that is to be sent now, or none. They stay
	// unchanged until Written. An error ends the connection. [Conn.Wake] has Due called, also where
	// a message waits.
	Due() (frames [][]byte, err error)
	// Written is called when all that Due returned has been written, and of what Take passed all that
	// it was shown. The rest of a large message may still be to come from the process.
	Written()
	// Waiting reports whether messages that were taken are still to be sent.
	Waiting() bool
	// Rests reports whether the stream can go on over another link. With the same Gatherer there it
	// always can, otherwise only while nothing is left to send.
	Rests() bool
}

// Taken is what a [Gatherer] does with a message.
type Taken int

// The values of Taken.
const (
	Passes Taken = iota // the message goes on as it is
	Took                // the Gatherer has it
	Waits               // show it again, once Due has returned what comes before it
)

// Hearer sees the meta of each message for the job's process, before the process gets it. It may be
// a [Greeter]. It must not keep the memory.
type Hearer interface {
	Hear(meta []byte)
}

// gather is an encoder's state for a [Gatherer].
type gather struct {
	gatherer Gatherer // nil: there is none
	unheld   bool     // the next message is to pass unheld, for lack of memory
}

// isWaiting reports whether messages that were taken are still to be sent.
func (g *gather) isWaiting() bool { return g.gatherer != nil && g.gatherer.Waiting() }

// due adds the messages that are due to out, and reports whether out is full. It does nothing
// inside a message that passes: the messages would land between its frames. A message that a stage
// has let pass, and that waits behind what was taken, has not begun.
func (e *encoder) due(out *output) (full bool, err error) {
	if e.gatherer == nil || e.inside || e.left > 0 {
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

// unlessDue returns v, but where that waits and messages have become due since, adds those to out.
func (e *encoder) unlessDue(v verdict, err error, out *output) (verdict, error) {
	if !v.wait || err != nil {
		return v, err
	}
	before := out.waiting
	if _, err := e.due(out); err != nil || out.waiting > before {
		return verdict{flush: true}, err
	}
	return v, nil
}

// take shows the scanned message to the gatherer, if there is one.
func (e *encoder) take() Taken {
	if e.gatherer == nil {
		return Passes
	}
	return e.gatherer.Take(&e.shown)
}

// hears shows the meta of a decoded message to the hearer. An identity frame before it is skipped.
func (d *decoder) hears(frames [][]byte, plain uint32) {
	if d.hearer == nil || len(frames) == 0 || plain&1 != 0 {
		return
	}
	if _, ok := pslite.ParseIdentity(frames[0]); ok && len(frames) > 1 {
		frames = frames[1:]
	}
	d.hearer.Hear(frames[0])
}

// hearPlain shows the first frame of a message to the hearer, where that frame comes from the link
// unchanged; b starts with its header of n bytes. It returns false where the frame is not
// completely buffered yet.
func (d *decoder) hearPlain(b []byte, h zmtp.Header, n int) bool {
	if d.hearer == nil || !d.atFirst() || h.Size > maxMeta {
		return true
	}
	if len(b) < n+int(h.Size) {
		return false
	}
	d.hearer.Hear(b[n : n+int(h.Size)])
	return true
}

// hearReady shows a READY command to the hearer.
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
