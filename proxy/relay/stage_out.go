package relay

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// fate is what a [Stage] has decided about a message.
type fate int

const (
	undecided fate = iota
	toPass
	toTake
)

// staged is an encoder's state for a [Stage].
type staged struct {
	staging
	fate    fate     // of the current message
	tight   bool     // without memory for more than its keys
	pending [][]byte // of the stage's own, to be sent first
}

// sendsOwn adds the stage's own messages to out. With a verdict some are left, for which out has to
// be written first, or which wait for the gatherer. It is called between two messages.
func (e *encoder) sendsOwn(out *output) (v verdict, err error) {
	if e.stage == nil {
		return v, nil
	}
	for {
		if len(e.pending) == 0 {
			if e.pending = e.stage.Due(); len(e.pending) == 0 {
				return v, nil
			}
		}
		for len(e.pending) > 0 {
			if v, err := e.sendOwn(e.pending[0], out); err != nil || v != (verdict{}) {
				return v, err
			}
			e.pending[0] = nil // the array may stay for long
			e.pending = e.pending[1:]
		}
	}
}

// sendOwn adds a message of the stage's own to out, or a command, or gives it to the gatherer. With
// a verdict it has not.
func (e *encoder) sendOwn(b []byte, out *output) (v verdict, err error) {
	if out.full() {
		return verdict{flush: true}, nil
	}
	// The message of the process that comes next may be scanned in part.
	asked, whole := e.asked, e.whole
	defer func() { e.asked, e.whole = asked, whole }()
	e.asked, e.whole = false, false
	held, v, err := e.scan(b)
	if err == nil && len(e.frames) > 0 && e.shown.Rest && e.wants(held) {
		held, v, err = e.scan(b)
	}
	switch {
	case err != nil || v.need > 0:
		return v, reason.Errorf(reason.Internal, "a message of the router's is not whole: %w", err)
	case len(e.frames) == 0 && e.isWaiting():
		return verdict{wait: true}, nil
	case len(e.frames) == 0: // a command
		out.lend(b)
		return v, nil
	case e.sharer != nil && out.waiting > 0 && e.sharer.MayWait(held):
		return verdict{flush: true}, nil
	}
	e.decided = true
	switch e.take() {
	case Took:
		return v, nil
	case Waits:
		return verdict{wait: true}, nil
	}
	e.observe()
	if e.sender == nil || !e.encode(out) {
		out.lend(b[:held])
	}
	out.lend(b[held:])
	return v, nil
}

// route asks the stage about the scanned message, of which held bytes are there. It consumes a
// message that the stage takes. done means that the message is not to be handled now: it is
// consumed, or the verdict says what is needed first.
func (e *encoder) route(held int, in *input, out *output) (v verdict, done bool, err error) {
	if e.stage == nil {
		return v, false, nil
	}
	if e.fate == toPass {
		return e.letPass(in, out)
	}
	d := e.shown.decode()
	if d.meta != nil { // not PS-lite's
		return v, false, nil
	}
	if e.fate == undecided {
		if e.lacksKeys(&d.message) {
			return e.holdKeys(&d.message)
		}
		taken, err := e.stage.Inspect(&d.message, d.dialect)
		switch {
		case err != nil:
			return v, true, err
		case taken == Waits:
			return verdict{wait: true}, true, nil
		case taken == Passes && e.lacksKeys(&d.message): // it has come to want them just now
			return e.holdKeys(&d.message)
		case taken == Passes:
			e.fate = toPass
			return e.letPass(in, out)
		}
		e.fate = toTake
	}
	if e.shown.Rest {
		if e.odd {
			return v, true, reason.Errorf(reason.MalformedJob, "from the job: a message with displaced keys has a command inside, or more than %d frames", maxFrames)
		}
		if e.whole || e.shown.Next > uint64(maxTaken-held) {
			return v, true, reason.Errorf(reason.Memory, "a message of more than %d bytes has displaced keys and cannot be held", maxTaken)
		}
		e.asked, e.whole = true, true
		return verdict{}, true, nil // scanned again, with all of it
	}
	if err := giveTo(e.stage, &d.message, d.dialect, d.err); err != nil {
		return v, true, err
	}
	in.r += held
	e.next()
	return verdict{}, true, nil
}

// letPass sends what the stage has due before a message that passes. It may be earlier requests of
// the process, which waited until just now: this one passes because none waits any more.
func (e *encoder) letPass(in *input, out *output) (v verdict, done bool, err error) {
	if len(e.pending) == 0 && !e.stage.HasDue() {
		return v, false, nil
	}
	if v, err := e.sendsOwn(out); v != (verdict{}) || err != nil {
		return v, true, err
	}
	_, v, err = e.scan(in.bytes()) // the frames shown were those of the stage's own
	return v, err != nil, err
}

// lacksKeys reports whether the stage wants to see the keys of e.shown, and they are not there.
func (e *encoder) lacksKeys(m *pslite.Message) bool {
	if len(m.Data) == 0 && !e.shown.Rest || len(m.Data) > 0 && len(m.Data[0])%8 == 0 {
		return false
	}
	return e.stage.WantsKeys(&m.Meta)
}

// holdKeys has the keys of the message held that the stage wants to see. It did not when the message
// was scanned, or they are not keys.
func (e *encoder) holdKeys(m *pslite.Message) (v verdict, done bool, err error) {
	if len(m.Data) == 0 && !e.odd && e.shown.Next%8 == 0 && e.shown.Next <= maxKeys {
		return v, true, nil // scanned again, with them
	}
	return v, true, reason.Errorf(reason.MalformedJob, "from the job: the keys of a message cannot be followed: they are not a frame of at most %d bytes, a multiple of 8", maxKeys)
}

// next begins with the next message.
func (e *encoder) next() { e.asked, e.whole, e.fate, e.tight = false, false, undecided, false }

// endOwn sends what gatherer and stage still have when the stream has ended. It blocks until all is
// sent, or until the stream has to go on over another link, where it ends again.
func (d *direction) endOwn() error {
	for {
		waits, err := d.drain()
		switch {
		case err != nil:
			return err
		case waits && d.passDue():
			return d.stand()
		case waits:
			if err := d.awaitTurn(); err != nil {
				return err
			}
		case d.stage == nil || d.stage.End(d.told(), d.side.between()):
			return nil
		}
	}
}

// drain sends what gatherer and stage have due now, if messages can be put in here, and reports
// whether the gatherer has more that waits, or the stage behind it.
func (d *direction) drain() (waits bool, err error) {
	e, outbound := d.side.(*encoder)
	if !outbound {
		if d.stage != nil && d.side.between() {
			err = d.sendOwn()
		}
		return false, err
	}
	for more := true; more; {
		var v verdict
		if e.between() {
			v, err = e.sendsOwn(&d.out)
		}
		if err == nil {
			_, err = e.due(&d.out)
		}
		more, waits = v.flush || d.out.waiting > 0, v.wait
		if flushed := d.flush(); flushed != nil {
			return false, flushed
		}
		if err != nil {
			return false, err
		}
	}
	return waits || e.isWaiting(), nil
}

// awaitTurn waits, without reading, until the message that waits can be looked at again: the stage
// may let it pass, or what goes before it is due. Of a process that has ended its side what is left
// is read at once, which is no more than the kernel holds of it: otherwise nobody would see its
// end.
func (d *direction) awaitTurn() error {
	if !d.waking.park(d.src) {
		return nil
	}
	// Each segment and the end of the stream are reasons to be called, of which only the end
	// counts.
	silent := false
	err := d.in.raw.Read(func(fd uintptr) bool {
		if d.silent {
			return false
		}
		silent = sendsNoMore(int(fd))
		return silent
	})
	d.waking.unpark()
	if silent {
		d.silent = true
		if d.stage != nil {
			d.stage.Silent()
		}
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return &sideError{err: err}
	}
	return nil
}

// endedStates are the kernel's states of a connection whose peer has ended its side, or that is
// over.
var endedStates = [...]uint8{unix.BPF_TCP_CLOSE, unix.BPF_TCP_CLOSE_WAIT, unix.BPF_TCP_LAST_ACK, unix.BPF_TCP_CLOSING, unix.BPF_TCP_TIME_WAIT}

// sendsNoMore reports whether the process at the other end of a connection has ended its side.
func sendsNoMore(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return true
	}
	for _, s := range endedStates {
		if info.State == s {
			return true
		}
	}
	return false
}
