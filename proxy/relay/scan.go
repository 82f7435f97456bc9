package relay

import (
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// scan looks at the message at the start of b: frames held, their size with
// headers, and how many bytes must be there before it can be said. Without
// frames the message, or command, passes as it is; otherwise e.shown is it.
func (e *encoder) scan(b []byte) (held int, v verdict, err error) {
	e.frames = e.frames[:0]
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
		if h.Command() || i == maxFrames || h != zmtp.FrameHeader(int(h.Size), h.More()) {
			e.frames = e.frames[:0]
			return 0, v, nil
		}
		if limit := e.frameLimit(i, keysAt, whole); h.Size > uint64(limit) {
			if i < keysAt {
				e.frames = e.frames[:0]
			}
			e.show(true, h.Size)
			if i <= keysAt || !e.hold(held+n) {
				return held, v, nil
			}
		}
		end := held + n + int(h.Size)
		if len(b) < end {
			return 0, verdict{need: end}, nil
		}
		frame := b[held+n : end]
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

// show makes e.frames the message to be shown.
func (e *encoder) show(rest bool, next uint64) {
	e.decoded.is = false
	e.shown = Message{Frames: e.frames, Rest: rest, Next: next, Detector: &e.detector, decoded: &e.decoded}
}

// hold reports whether e.shown, a beginning of the message, must be held on with
// its next frame, which starts after that many bytes.
func (e *encoder) hold(before int) bool {
	if e.holder == nil && e.gatherer == nil || e.shown.Next > uint64(HoldLimit-before) {
		return false
	}
	if !e.asked {
		e.asked, e.whole = true, e.holder != nil && e.holder.Hold(&e.shown)
		e.whole = e.gatherer != nil && e.gatherer.Wants(&e.shown) || e.whole
	}
	return e.whole
}

func (e *encoder) frameLimit(i, keysAt, whole int) int {
	switch {
	case i < keysAt:
		return maxMeta
	case i == keysAt && e.sender != nil:
		return maxKeys
	}
	return min(maxFrame, max(0, maxWhole-whole))
}
