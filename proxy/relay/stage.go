package relay

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// Stage is a part of one direction's pipeline that decides where messages go: it takes some out of
// the stream, and puts its own in between. In the direction to Far it comes before the codec, in
// the direction to Job after it. It outlives the Conn where the connection goes on over another
// link.
type Stage interface {
	Judge
	Speaker
	// Close is called when the connection has ended, or was abandoned.
	Close()
}

// Judge is the part of a [Stage] that sees the stream. All methods are called by the direction's
// goroutine.
type Judge interface {
	// Command is shown a command of the process that sends, and reports whether it passes. With an
	// error the connection ends, and the command does not pass.
	Command(name string, data []byte) (passes bool, err error)
	// WantsKeys reports whether Inspect needs the keys of a message with this meta.
	WantsKeys(m *pslite.Meta) bool
	// Inspect is shown the beginning of a message, with its keys where WantsKeys asked for them,
	// until it returns something else than Waits: that message, and all behind it, then wait. With
	// an error the connection ends.
	Inspect(m *pslite.Message, d pslite.Dialect) (Taken, error)
	// Take is given the whole of a message for which Inspect has returned Took. The memory is the
	// stage's to keep.
	Take(m *pslite.Message, d pslite.Dialect) error
	// Silent is called where a message waits and the process sends nothing more.
	Silent()
}

// Speaker is the part of a [Stage] that has messages of its own. They are sent between two others.
type Speaker interface {
	// HasDue reports whether Due would return any.
	HasDue() bool
	// Due returns the messages to be sent now, each whole as ZMTP has them on the wire. Their memory
	// is the caller's.
	Due() [][]byte
	// Sent is called in the direction to Job, for each result of Due, with how many bytes of it
	// were written. That is less than all only after an error.
	Sent(batch [][]byte, n int)
	// End is called at the end of the stream. It returns false where messages are due that go
	// first; once it has returned true there are no more. told means that the process that sends
	// had been sent the end of its own stream, and between that messages can be put in here. It may
	// be called by any goroutine, as may those below.
	End(told, between bool) bool
	// Attach is called when a Conn begins to carry the connection, with the function that has it
	// call Due, and with nil when it no longer does. Any goroutine may call that function.
	Attach(wake func())
	// Receptive is called when the process that receives can be sent messages, since it has sent
	// its READY.
	Receptive()
}

// maxTaken bounds a message that a [Stage] takes, in bytes.
const maxTaken = 256 << 20

// stages returns the connection's stages.
func (c *Conn) stages() (all []Stage) {
	for _, s := range []Stage{c.Outbound, c.Inbound} {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// attach has the stages wake the directions.
func (c *Conn) attach() {
	if c.Outbound != nil {
		c.Outbound.Attach(c.Wake)
	}
	if c.Inbound != nil {
		c.Inbound.Attach(c.wakingJob.wake)
	}
}

// detach undoes attach.
func (c *Conn) detach() {
	for _, s := range c.stages() {
		s.Attach(nil)
	}
}

// Abandon resets the half to the job's process, of a connection that no Run carries.
func (c *Conn) Abandon() {
	Reset(c.Job)
	c.closeStages()
}

func (c *Conn) closeStages() {
	for _, s := range c.stages() {
		s.Close()
	}
}

// EndJob sends the job's process the end of its stream. Any goroutine may call it.
func (c *Conn) EndJob() {
	c.jobTold.Store(true)
	if c.Inbound != nil {
		c.Inbound.End(false, false) // what is queued waits for the next connection
	}
	_ = closeWrite(c.Job) // it ends by itself
}

// fate is what a [Stage] has decided about a message.
type fate int

const (
	undecided fate = iota
	toPass
	toTake
)

// staged is an encoder's state for a [Stage].
type staged struct {
	stage   Stage    // nil: there is none
	fate    fate     // of the current message
	tight   bool     // without memory for more than its keys
	pending [][]byte // of the stage's own, to be sent first
	// receptive is called when the process is known to take messages; nil: it was.
	receptive func()
}

// sendsOwn adds the stage's own messages to out, and reports whether out has to be written first.
// It is called between two messages.
func (e *encoder) sendsOwn(out *output) (flush bool, err error) {
	if e.stage == nil {
		return false, nil
	}
	for {
		if len(e.pending) == 0 {
			if e.pending = e.stage.Due(); len(e.pending) == 0 {
				return false, nil
			}
		}
		for len(e.pending) > 0 {
			sent, err := e.sendOwn(e.pending[0], out)
			if err != nil || !sent {
				return true, err
			}
			e.pending[0] = nil // the array may stay for long
			e.pending = e.pending[1:]
		}
	}
}

// sendOwn adds a message of the stage's own to out, or a command. It returns false where out has to
// be written first.
func (e *encoder) sendOwn(b []byte, out *output) (sent bool, err error) {
	if out.full() {
		return false, nil
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
		return false, reason.Errorf(reason.Internal, "a message of the router's is not whole: %w", err)
	case len(e.frames) == 0: // a command
		out.lend(b)
		return true, nil
	case e.sharer != nil && out.waiting > 0 && e.sharer.MayWait(held):
		return false, nil
	}
	e.decided = true
	e.observe()
	if e.sender == nil || !e.encode(out) {
		out.lend(b[:held])
	}
	out.lend(b[held:])
	return true, nil
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
			return v, true, reason.Errorf(reason.MalformedJob, "from the job: the keys of a message cannot be followed: they are not a frame of at most %d bytes, a multiple of 8", maxKeys)
		}
		taken, err := e.stage.Inspect(&d.message, d.dialect)
		switch {
		case err != nil:
			return v, true, err
		case taken == Waits:
			return verdict{wait: true}, true, nil
		case taken == Passes:
			e.fate = toPass
			return e.letPass(in, out)
		}
		e.fate = toTake
	}
	if e.odd {
		return v, true, reason.Errorf(reason.MalformedJob, "from the job: a message with displaced keys that is not as PS-lite makes them")
	}
	if e.shown.Rest {
		if e.whole || e.shown.Next > uint64(maxTaken-held) {
			return v, true, reason.Errorf(reason.Memory, "a message of more than %d bytes has displaced keys and cannot be held", maxTaken)
		}
		e.asked, e.whole = true, true
		return verdict{}, true, nil // scanned again, with all of it
	}
	if err := takeWhole(e.stage, &e.detector, e.frames); err != nil {
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
	if flush, err := e.sendsOwn(out); flush || err != nil {
		return verdict{flush: true}, true, err
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

// next begins with the next message.
func (e *encoder) next() { e.asked, e.whole, e.fate, e.tight = false, false, undecided, false }

// takeWhole gives the stage a copy of a message's frames.
func takeWhole(s Stage, detector *pslite.Detector, frames [][]byte) error {
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	own, all := make([]byte, 0, size), make([][]byte, len(frames))
	for i, f := range frames {
		start := len(own)
		own = append(own, f...)
		all[i] = own[start:len(own):len(own)]
	}
	return takeOwn(s, detector, all)
}

// takeOwn gives the stage a message in memory that nobody else uses.
func takeOwn(s Stage, detector *pslite.Detector, frames [][]byte) error {
	var m pslite.Message
	d, err := m.Decode(detector, frames)
	if err != nil {
		return reason.Errorf(reason.MalformedJob, "a message with displaced keys: %w", err)
	}
	if err := s.Take(&m, d); err != nil {
		return reason.Errorf(reason.Route, "%w", err)
	}
	return nil
}

// received is a decoder's state for a [Stage].
type received struct {
	stage     Stage  // nil: there is none
	receptive func() // see staged
	detector  pslite.Detector
	blind     bool // the messages are not PS-lite's: all pass
	named     bool // an identity frame has passed, and the meta comes next
	takes     bool // the stage takes the current message,
	taken     [][]byte
	size      int // of taken
	message   pslite.Message
}

// judge shows the stage a message's meta, before anything of it passes, and notes whether the stage
// takes it.
func (d *decoder) judge(meta []byte) error {
	if d.blind {
		return nil
	}
	m := &d.message
	m.Identity, m.Data = nil, nil
	dialect, err := d.detector.Decode(meta, &m.Meta)
	if err != nil {
		d.blind = true
		return nil
	}
	taken, err := d.stage.Inspect(m, dialect)
	if err != nil {
		return err
	}
	if taken == Took {
		d.takes, d.taken, d.size = true, nil, 0
	}
	return nil
}

// judgePlain judges a message by its first frame, where that comes from the link unchanged; b
// starts with its header of n bytes. It returns false where the frame is not completely buffered
// yet.
func (d *decoder) judgePlain(b []byte, h zmtp.Header, n int) (ok bool, err error) {
	first := d.named || d.atFirst()
	if d.stage == nil || !first || h.Size > maxMeta {
		d.named = false
		return true, nil
	}
	if len(b) < n+int(h.Size) {
		return false, nil
	}
	frame := b[n : n+int(h.Size)]
	// A ROUTER socket sends an identity frame first. It passes by itself.
	_, identity := pslite.ParseIdentity(frame)
	if d.named = identity && h.More() && !d.named; d.named {
		return true, nil
	}
	return true, d.judge(frame)
}

// judgeDecoded judges a message that was decoded.
func (d *decoder) judgeDecoded(frames [][]byte, plain uint32) error {
	if d.stage == nil || plain&1 != 0 {
		return nil
	}
	if _, ok := pslite.ParseIdentity(frames[0]); ok && len(frames) > 1 && plain&2 == 0 {
		frames = frames[1:]
	}
	return d.judge(frames[0])
}

// beginFrame begins a frame of size bytes.
func (d *decoder) beginFrame(size uint64) error {
	if !d.takes {
		return nil
	}
	if size > maxTaken || d.size+int(size) > maxTaken {
		return reason.Errorf(reason.Memory, "a message of more than %d bytes has displaced keys and cannot be held", maxTaken)
	}
	d.size += int(size)
	// A size that is merely claimed costs little.
	d.taken = append(d.taken, make([]byte, 0, min(size, maxFrame)))
	return nil
}

// addTaken adds bytes to the current frame of a message that the stage takes.
func (d *decoder) addTaken(b []byte) {
	last := len(d.taken) - 1
	d.taken[last] = append(d.taken[last], b...)
}

// endTaken gives the stage the message that it takes, once all of it is there.
func (d *decoder) endTaken() error {
	if !d.takes || d.inside || d.left > 0 || d.next < len(d.frames) {
		return nil
	}
	frames := d.taken
	d.takes, d.taken = false, nil
	return takeOwn(d.stage, &d.detector, frames)
}

// ownDue reports whether the stage's own messages can be written now.
func (d *decoder) ownDue() bool { return d.stage != nil && d.between() && d.stage.HasDue() }

// sendOwn writes the stage's own messages to the process, which has got whole messages so far. They
// do not wait for a hold: they answer what the process has sent.
func (d *direction) sendOwn() error {
	batch := d.stage.Due()
	if len(batch) == 0 {
		return nil
	}
	if !d.hold.isOn() {
		if err := d.flushHeld(); err != nil {
			return err
		}
	}
	n, err := d.hold.write(d.dst, batch)
	d.flow.out.Add(uint64(n))
	d.stage.Sent(batch, n)
	if err != nil {
		return &sideError{write: true, err: err}
	}
	return nil
}

// write writes messages that are not held, between two writes of what was.
func (h *hold) write(dst net.Conn, batch [][]byte) (int, error) {
	h.writing.Lock()
	defer h.writing.Unlock()
	v := net.Buffers(append([][]byte(nil), batch...)) // WriteTo consumes it
	n, err := v.WriteTo(dst)
	return int(n), err
}

// isOn reports whether messages are held.
func (h *hold) isOn() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on
}

// endStage sends what the stage has due, at the end of the stream.
func (d *direction) endStage() error {
	if d.stage == nil {
		return nil
	}
	for {
		if err := d.drainStage(); err != nil || d.stage.End(d.told(), d.side.between()) {
			return err
		}
	}
}

// drainStage sends what the stage has due now, if messages can be put in here.
func (d *direction) drainStage() error {
	e, outbound := d.side.(*encoder)
	for more := d.side.between(); more; {
		more = false
		var err error
		if outbound {
			more, err = e.sendsOwn(&d.out)
		} else {
			err = d.sendOwn()
		}
		if flushed := d.flush(); flushed != nil {
			return flushed
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitStage waits, without reading, until the stage has something due or lets the message pass that
// waits. Of a process that has ended its side what is left is read at once, which is no more than
// the kernel holds of it: otherwise nobody would see its end.
func (d *direction) awaitStage() error {
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
		d.stage.Silent()
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
