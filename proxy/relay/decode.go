package relay

import (
	"context"
	"errors"
	"math/bits"
	"time"
	"unsafe"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// decoder is the side that turns the link's stream back into that of the far process.
//
// An encoded message may consist of decoded frames and frames that come from the link, in any
// order. frames and next track it until it has been passed on whole; the fields of skim track the
// frame of the link, and with it messages that were not encoded.
type decoder struct {
	receiver Receiver
	releaser Releaser // receiver, where it is one
	waiter   Waiter   // receiver, where it is one
	hearer   Hearer   // nil: none
	flow     *Flow
	passing  *Passing // nil: it may not end between two messages
	skim
	received
	// Of an encoded message that is not yet passed on whole:
	frames [][]byte // by index; those that come from the link are ignored
	plain  uint32   // bit i: frames[i] comes from the link
	next   int      // index of the next of frames to pass on
	open   bool     // more frames come from the link
	copied []byte   // memory of keepLater
}

func newDecoder(r Receiver, flow *Flow) *decoder {
	d := &decoder{receiver: r, flow: flow}
	d.releaser, _ = r.(Releaser)
	d.waiter, _ = r.(Waiter)
	return d
}

// step is like [encoder.step].
func (d *decoder) step(in *input, out *output) (verdict, error) {
	if d.receiver == nil && d.stage == nil && d.receptive == nil && d.between() {
		return verdict{raw: true}, nil // nobody has to see the rest
	}
	for {
		if out.full() {
			return verdict{flush: true}, nil
		}
		if d.ownDue() {
			return verdict{flush: true, own: true}, nil
		}
		if in.r == in.w {
			break
		}
		if d.left > 0 {
			if !d.body(in, out) {
				break
			}
			if err := d.proceed(out); err != nil {
				return verdict{}, err
			}
			continue
		}
		v, err := d.header(in, out)
		if err != nil || v != (verdict{}) {
			return v, err
		}
	}
	if d.takes {
		return verdict{}, nil
	}
	return verdict{move: d.left}, nil
}

// body passes buffered bytes of the current frame's body, and reports whether that is complete.
func (d *decoder) body(in *input, out *output) bool {
	if !d.takes {
		return d.skim.body(in, out)
	}
	b := in.bytes()
	b = b[:min(uint64(len(b)), d.left)]
	d.addTaken(b)
	in.r += len(b)
	d.left -= uint64(len(b))
	return d.left == 0
}

// header starts the next frame of the link. For one that belongs to an encoded message it writes a
// new header, whose MORE flag depends on the frames of the whole message.
func (d *decoder) header(in *input, out *output) (verdict, error) {
	b := in.bytes()
	h, n, err := zmtp.CutHeader(b)
	if err != nil {
		return verdict{}, reason.Errorf(reason.MalformedLink, "from the link: %w", err)
	}
	if n == 0 {
		return verdict{need: zmtp.MaxHeader}, nil
	}
	if h.Command() {
		return d.command(h, n, in, out)
	}
	if !d.hearPlain(b, h, n) {
		return verdict{need: n + int(h.Size)}, nil
	}
	switch ok, err := d.judgePlain(b, h, n); {
	case err != nil:
		return verdict{}, err
	case !ok:
		return verdict{need: n + int(h.Size)}, nil
	}
	d.receives() // not a handshake as libzmq's: there is nothing to wait for
	if !d.inside && len(d.frames) == 0 {
		d.flow.messages.Add(1)
	}
	encoded := d.next < len(d.frames) // a frame of an encoded message
	if encoded {
		d.next++
		d.open = h.More()
	}
	switch {
	case d.takes:
		if err := d.beginFrame(h.Size); err != nil {
			return verdict{}, err
		}
	case encoded:
		out.taken(zmtp.AppendHeader(out.space(), zmtp.FrameHeader(int(h.Size), d.next < len(d.frames) || d.open)))
	default:
		out.lend(b[:n])
	}
	in.r += n
	d.left, d.inside = h.Size, h.More()
	if d.left == 0 {
		return verdict{}, d.proceed(out)
	}
	return verdict{}, nil
}

// command passes a command of the job, or handles one of the proxies. The size is checked before
// the command is held: a head has at most HeadLimit bytes.
func (d *decoder) command(h zmtp.Header, n int, in *input, out *output) (verdict, error) {
	if h.Size > HeadLimit+uint64(commandExtra) {
		return verdict{}, reason.Errorf(reason.MalformedLink, "from the link: a command of %d bytes, at most %d are allowed", h.Size, HeadLimit+commandExtra)
	}
	b := in.bytes()
	total := n + int(h.Size)
	if known := n + min(int(h.Size), commandExtra); len(b) < known {
		return verdict{need: known}, nil
	}
	switch {
	case d.receiver == nil || !isOurs(b[n:min(total, len(b))]):
		if h.Size > zmtp.MaxCommand {
			return verdict{}, reason.Errorf(reason.MalformedLink, "from the link: a command of %d bytes, at most %d are allowed", h.Size, zmtp.MaxCommand)
		}
		if len(b) < total {
			return verdict{need: total}, nil
		}
		d.hearReady(b[n:total])
		passes, err := d.hear(b[n:total])
		if passes {
			out.lend(b[:total])
		}
		in.r += total
		return verdict{raw: d.receiver == nil && d.stage == nil && d.receptive == nil && d.between()}, err
	case d.inside || h.Size < uint64(commandExtra):
		return verdict{}, reason.Errorf(reason.MalformedLink, "from the link: an encoded message inside another")
	case len(b) < total:
		return verdict{need: total}, nil
	case out.lent: // until written, the memory of the message before is in use
		return verdict{flush: true}, nil
	case out.waiting > 0 && d.waiter != nil && d.waiter.Waits(b[n+commandExtra:total]):
		return verdict{flush: true}, nil
	}
	in.r += total
	return d.encoded(b[n+commandExtra-1], b[n+commandExtra:total], out)
}

// encoded decodes an encoded message. Errors of Decode end the link, for a reason that depends on
// whether the head is at fault, memory, or another connection.
func (d *decoder) encoded(flags byte, head []byte, out *output) (verdict, error) {
	if flags&flagRaw != 0 {
		return verdict{raw: true}, nil
	}
	if flags&flagPass != 0 {
		return d.passCommand(head)
	}
	d.flow.messages.Add(1)
	d.flow.encoded.Add(1)
	sampled := d.flow.encoded.Load()%timedOneIn == 0
	var began time.Time
	if sampled {
		began = time.Now()
	}
	frames, plain, err := d.receiver.Decode(head)
	if sampled {
		d.flow.codecNanos.Add(timedOneIn * uint64(time.Since(began)))
	}
	follow := flags&flagFollow != 0
	switch {
	case errors.Is(err, ErrLinkLost):
		return verdict{}, &sideError{err: err}
	case errors.Is(err, ErrNoMemory):
		return verdict{}, reason.Errorf(reason.Memory, "decoding a message of the link: %w", err)
	case err != nil:
		return verdict{}, reason.Errorf(reason.Codec, "from the link: %w", err)
	case len(frames) > maxFrames:
		return verdict{}, reason.Errorf(reason.Codec, "from the link: a message decodes to %d frames, at most %d are encoded", len(frames), maxFrames)
	}
	plain &= 1<<len(frames) - 1
	if len(frames) == 0 {
		if follow {
			return verdict{}, reason.Errorf(reason.Codec, "from the link: frames of a message without frames")
		}
		return verdict{}, nil
	}
	d.hears(frames, plain)
	d.receives()
	if err := d.judgeDecoded(frames, plain); err != nil {
		return verdict{}, err
	}
	d.plain, d.next, d.open = plain, 0, follow
	d.frames = append(d.frames[:0], frames...)
	d.inside = follow
	d.keepLater(head)
	return verdict{}, d.proceed(out)
}

// keepLater copies decoded frames that lie in the input's buffer and are written only after a frame
// that has yet to come from the link: reading that overwrites the buffer. Frames elsewhere are the
// receiver's until Release.
func (d *decoder) keepLater(head []byte) {
	if d.plain == 0 {
		return
	}
	d.copied = d.copied[:0]
	for i := bits.TrailingZeros32(d.plain); i < len(d.frames); i++ {
		if d.plain&(1<<i) == 0 && within(d.frames[i], head) {
			start := len(d.copied)
			d.copied = append(d.copied, d.frames[i]...)
			d.frames[i] = d.copied[start:len(d.copied):len(d.copied)]
		}
	}
	if cap(d.copied) > keepScratch {
		d.copied = nil
	}
}

// within reports whether b lies in head's memory.
func within(b, head []byte) bool {
	if len(b) == 0 || len(head) == 0 {
		return false
	}
	at, first := uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&head[0]))
	return at >= first && at < first+uintptr(len(head))
}

// proceed adds the decoded frames up to the next one that comes from the link.
func (d *decoder) proceed(out *output) error {
	for d.next < len(d.frames) && d.plain&(1<<d.next) == 0 {
		f := d.frames[d.next]
		d.next++
		if d.takes {
			if err := d.beginFrame(uint64(len(f))); err != nil {
				return err
			}
			d.addTaken(f)
			continue
		}
		out.taken(zmtp.AppendHeader(out.space(), zmtp.FrameHeader(len(f), d.next < len(d.frames) || d.open)))
		out.add(f)
	}
	switch {
	case d.next == len(d.frames):
		d.frames, d.next = d.frames[:0], 0
	case !d.open:
		return reason.Errorf(reason.Codec, "from the link: an encoded message is missing frames")
	}
	return d.endTaken()
}

// moved accounts for n bytes of a body that the kernel moved.
func (d *decoder) moved(n uint64, out *output) error {
	if d.left -= n; d.left > 0 {
		return nil
	}
	return d.proceed(out)
}

// noRoom waits for memory: an encoded message can only be passed on decoded, and so must be held.
func (d *decoder) noRoom(ctx context.Context, in *input, need int) error {
	return in.growWithin(ctx, need, "an encoded message")
}

// rest handles bytes that are still buffered when the stream ends: a piece of a plain frame's
// header passes, one of an encoded message is lost, which is an error.
func (d *decoder) rest(in *input, out *output) error {
	b := in.bytes()
	if d.takes { // nobody gets a part of it
		in.r = in.w
		return nil
	}
	if h, n, err := zmtp.CutHeader(b); d.next < len(d.frames) || err == nil && n > 0 && h.Command() && isOurs(b[n:]) {
		return reason.Errorf(reason.ResetByFarSide, "the link ended inside an encoded message")
	}
	out.lend(b)
	in.r = in.w
	return nil
}

// between reports whether the direction stands between two messages.
func (d *decoder) between() bool { return !d.inside && d.left == 0 && !d.named }

// atFirst reports whether the next frame of the link is the first of a message.
func (d *decoder) atFirst() bool {
	return !d.inside && len(d.frames) == 0 || len(d.frames) > 0 && d.next == 0
}

// written releases the memory of decoded frames, once none of them is waiting to be written.
func (d *decoder) written() {
	if d.releaser != nil && len(d.frames) == 0 {
		d.releaser.Release()
	}
}

func (d *decoder) close() {
	if d.receiver != nil {
		d.receiver.Close()
	}
}
