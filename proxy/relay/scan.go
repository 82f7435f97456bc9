package relay

import (
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// scan looks at the message at the start of b, and returns how many bytes of it are held, headers
// included; e.shown is the message then. Where more bytes must be there to decide, it returns a
// verdict with need. Without e.frames, it is a command, or a message that passes as it is. With
// e.odd the message cannot be encoded, and what of it was recognized is shown to the stage alone.
//
// A message is scanned anew with each read, which costs only its few headers.
func (e *encoder) scan(b []byte) (held int, v verdict, err error) {
	e.frames, e.odd = e.frames[:0], false
	keysAt, whole := 1, 0
	for {
		h, n, err := zmtp.CutHeader(b[held:])
		if err != nil {
			return 0, v, reason.Errorf(reason.MalformedJob, "from the job: %w", err)
		}
		if n == 0 {
			return 0, verdict{need: held + zmtp.MaxHeader}, nil
		}
		i := len(e.frames)
		if h.Command() || i == maxFrames {
			if e.odd = e.stage != nil && i >= keysAt; !e.odd {
				e.frames = e.frames[:0]
			}
			e.show(true, h.Size)
			return held, v, nil
		}
		// A header in a longer form than necessary would not come out the same at the far end,
		// which makes its own.
		if h != zmtp.FrameHeader(int(h.Size), h.More()) {
			if e.stage == nil {
				e.frames = e.frames[:0]
				return 0, v, nil
			}
			e.odd = true
		}
		if limit := e.frameLimit(i, keysAt, whole); h.Size > uint64(limit) && !e.holdsKeys(i, keysAt, h.Size) {
			if i < keysAt {
				e.frames = e.frames[:0]
			}
			e.show(true, h.Size)
			if i <= keysAt || !e.whole {
				return held, v, nil
			}
		}
		end := held + n + int(h.Size)
		if len(b) < end {
			return 0, verdict{need: end}, nil
		}
		frame := b[held+n : end]
		// A ROUTER's message has an identity frame first, so that the keys are one frame later.
		if _, ok := pslite.ParseIdentity(frame); ok && i == 0 && h.More() {
			keysAt = 2
		}
		if i > keysAt {
			whole += len(frame)
		}
		e.frames = append(e.frames, frame)
		held = end
		if !h.More() {
			e.show(false, 0)
			return held, v, nil
		}
	}
}

// show makes e.frames the shown message, not decoded yet.
func (e *encoder) show(rest bool, next uint64) {
	e.decoded.is = false
	e.shown = Message{Frames: e.frames, Rest: rest, Next: next, Detector: &e.detector, decoded: &e.decoded}
}

// wants reports whether the rest of e.shown, of which held bytes are there, must be held too. The
// holder and the gatherer are asked once per message, although scan comes by with each read.
func (e *encoder) wants(held int) bool {
	if e.asked || len(e.frames) < 2 || e.holder == nil && e.gatherer == nil || e.shown.Next > uint64(HoldLimit-held) {
		return false
	}
	e.asked, e.whole = true, e.holder != nil && e.holder.Hold(&e.shown)
	e.whole = e.gatherer != nil && e.gatherer.Wants(&e.shown) || e.whole
	return e.whole
}

// holdsKeys reports whether frame i, of size bytes, has keys that the stage wants to see.
func (e *encoder) holdsKeys(i, keysAt int, size uint64) bool {
	if e.stage == nil || i != keysAt || size > maxKeys {
		return false
	}
	e.show(true, size)
	d := e.shown.decode()
	return d.meta == nil && e.stage.WantsKeys(&d.message.Meta)
}

// frameLimit returns the maximum size of frame i that is held; whole is the size of the frames
// after the keys so far.
func (e *encoder) frameLimit(i, keysAt, whole int) int {
	switch {
	case i < keysAt:
		return maxMeta
	case i == keysAt && e.sender != nil:
		return maxKeys
	case i > keysAt && e.tight:
		return 0
	}
	return min(maxFrame, max(0, maxWhole-whole))
}
