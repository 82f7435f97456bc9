package bpf

import (
	"bytes"
	"fmt"
	"io"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// message is what both readers must agree on: the frames' lengths, and the
// bytes of those that are copied.
type message struct {
	lengths    [4]uint64
	meta       []byte
	keys, lens []byte
	incomplete bool
	envelope   bool // known to the Go reader alone
}

// transcript is one stream as the kernel reported it.
type transcript struct {
	messages []message
	commands [][]byte
	events   []Kind // all but the above
	numbers  []uint64
	open     message // in progress
	faults   []string
	runs     int
}

func (s *transcript) add(r *Record) {
	switch r.Kind {
	case KindCommand:
		s.commands = append(s.commands, bytes.Clone(r.Data))
	case KindMeta:
		s.piece(r, &s.open.meta)
		s.open.lengths[0] = r.Length
		if r.Has(EndsMessage) {
			s.end(r, s.open.lengths)
		}
	case KindKeys:
		s.piece(r, &s.open.keys)
	case KindKeyRun:
		s.run(r)
	case KindLens:
		s.piece(r, &s.open.lens)
	case KindEnd:
		s.open.incomplete = r.Has(Incomplete)
		s.end(r, r.FrameBytes())
	default:
		s.events = append(s.events, r.Kind)
		if r.Kind == KindUnsynced || r.Kind == KindLost {
			s.open = message{}
		}
	}
}

// piece appends a chunk, which must follow the one before.
func (s *transcript) piece(r *Record, to *[]byte) {
	if r.Offset != uint64(len(*to)) {
		s.faults = append(s.faults, fmt.Sprintf("%s at %d after %d bytes", r.Kind, r.Offset, len(*to)))
	}
	*to = append(*to, r.Data...)
	if r.Has(EndsFrame) != (uint64(len(*to)) == r.Length) {
		s.faults = append(s.faults, fmt.Sprintf("%s: %d of %d bytes, flags %#x", r.Kind, len(*to), r.Length, r.Flags))
	}
}

// run appends the keys that a run stands for.
func (s *transcript) run(r *Record) {
	first, step, n := r.KeyRun()
	if n < 8 {
		s.faults = append(s.faults, fmt.Sprintf("a run of %d keys", n))
	}
	s.runs++
	whole := *r
	whole.Data = nil
	for i := range n {
		whole.Data = native.AppendUint64(whole.Data, first+i*step)
	}
	s.piece(&whole, &s.open.keys)
}

func (s *transcript) end(r *Record, lengths [4]uint64) {
	s.open.lengths = lengths
	s.messages = append(s.messages, s.open)
	s.numbers = append(s.numbers, r.Message)
	s.open = message{}
}

// readStream is the same by the Go reader, of a stream from its greeting on,
// or from a message on where synced.
func readStream(stream []byte, synced bool) (messages []message, commands [][]byte, envelopes int, err error) {
	d := zmtp.NewDecoder(zmtp.Limits{})
	d.Reset(synced)
	var (
		m     message
		body  []byte
		frame int
	)
	for {
		ev, rest, err := d.Next(stream)
		if err != nil {
			return messages, commands, envelopes, err
		}
		stream = rest
		switch ev.Kind {
		case zmtp.NeedMore:
			if !d.Between() {
				err = io.ErrUnexpectedEOF
			}
			return messages, commands, envelopes, err
		case zmtp.FrameStart:
			body = nil
		case zmtp.FrameBody:
			body = append(body, ev.Body...)
		case zmtp.FrameEnd:
			if ev.Header.Command() {
				commands = append(commands, body[:min(len(body), 256)])
				continue
			}
			if frame == 0 && ev.Header.More() && len(body) < 16 && bytes.HasPrefix(body, []byte("ps")) {
				envelopes++
				m.envelope = true
				continue // BytePS: the asker's identity before an answer
			}
			m.lengths[frame] = ev.Header.Size
			if to := []*[]byte{&m.meta, &m.keys, nil, &m.lens}[frame]; to != nil {
				*to = body
			}
			frame++
			if !ev.Header.More() {
				messages = append(messages, m)
				m, frame = message{}, 0
			}
		}
	}
}

// differ says where the transcript differs from what the Go reader found.
func (s *transcript) differ(messages []message, commands [][]byte) string {
	if len(s.faults) > 0 {
		return s.faults[0]
	}
	if len(s.messages) != len(messages) || len(s.commands) != len(commands) {
		return fmt.Sprintf("kernel: %d messages, %d commands; Go: %d, %d (events %v)",
			len(s.messages), len(s.commands), len(messages), len(commands), s.events)
	}
	for i := range commands {
		if !bytes.Equal(s.commands[i], commands[i]) {
			return fmt.Sprintf("command %d: kernel %q, Go %q", i, s.commands[i], commands[i])
		}
	}
	for i := range messages {
		k, g := &s.messages[i], &messages[i]
		if k.lengths != g.lengths || !bytes.Equal(k.meta, g.meta) || !bytes.Equal(k.keys, g.keys) || !bytes.Equal(k.lens, g.lens) {
			return fmt.Sprintf("message %d: kernel lengths %v, meta %x, keys %x, lens %x; Go lengths %v, meta %x, keys %x, lens %x",
				i, k.lengths, k.meta, k.keys, k.lens, g.lengths, g.meta, g.keys, g.lens)
		}
	}
	return ""
}
