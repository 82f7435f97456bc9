package relay

import (
	"net"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// received is a decoder's state for a [Stage].
type received struct {
	staging
	detector pslite.Detector
	blind    bool // the messages are not PS-lite's: all pass
	named    bool // an identity frame has passed, and the meta comes next
	takes    bool // the stage takes the current message,
	taken    [][]byte
	size     int // of taken
	message  pslite.Message
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
	var m pslite.Message
	dialect, err := m.Decode(&d.detector, frames)
	return giveTo(d.stage, &m, dialect, err)
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
