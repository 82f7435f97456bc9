package capture

import (
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// resync checks whether a greeting or a message begins where the segment b begins, and
// takes the stream up there if so. A false start is possible and costs little: the
// decoder fails soon, and the stream is lost again.
func (s *stream) resync(b []byte) bool {
	switch {
	case len(b) > 9 && b[0] == 0xff && b[9] == 0x7f:
		s.dec.Reset(false)
	case startsMessage(b):
		s.dec.Reset(true)
	default:
		return false
	}
	s.mode = synced
	return true
}

// startsMessage reports whether b begins with a whole meta frame that PS-lite could
// have written, and whether the frame headers visible behind it fit: as many data
// frames as the meta has types, keys in multiples of eight bytes. Before the meta there
// may be an identity, as BytePS's servers send it.
func startsMessage(b []byte) bool {
	// A decoder of its own: s.dec must not move if this is no start. Commands cannot
	// begin a message.
	d := zmtp.NewDecoder(zmtp.Limits{FrameSize: 1 << 40, CommandSize: 1})
	d.Reset(true)
	var meta pslite.Meta
	types, atMeta, identified := 0, true, false
	for frame := 0; ; frame++ {
		ev, rest, err := d.Next(b)
		if err != nil || ev.Kind == zmtp.NeedMore {
			return err == nil && frame > 0
		}
		h := ev.Header
		if atMeta {
			if h.Size > maxMeta || h.Size > uint64(len(rest)) || h.Command() {
				return false
			}
			if _, ok := pslite.ParseIdentity(rest[:h.Size]); ok && !identified && h.More() {
				d.Discard(h.Size)
				d.Next(nil) // the frame's end
				b, frame, identified = rest[h.Size:], -1, true
				continue
			}
			if _, ok := pslite.Plausible(rest[:h.Size], -1, &meta); !ok {
				return false
			}
			types, atMeta = len(meta.DataTypes), false
		}
		// A message is a meta and as many data frames as it has types. The first data
		// frame has keys of 8 bytes.
		if h.Command() || h.More() != (frame < types) || frame == 1 && meta.Data() && h.Size%8 != 0 {
			return false
		}
		if !h.More() {
			return true
		}
		body := min(h.Size, uint64(len(rest)))
		d.Discard(body)
		b = rest[body:]
		if body == h.Size {
			d.Next(nil) // the frame's end
		} else {
			return true // the rest is in segments to come
		}
	}
}
