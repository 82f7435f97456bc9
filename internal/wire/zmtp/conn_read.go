package zmtp

import (
	"errors"
	"fmt"
	"io"
)

// Message is a multipart message as [Conn.ReadMessage] fills it. Each frame begins at
// an address divisible by 8, so that keys and values can be used in place. The memory
// is reused by the next ReadMessage with the same Message; a Message that is handed to
// another goroutine must not be passed again before that one is done.
type Message struct {
	Frames [][]byte
	bufs   [][]byte // what Frames are slices of; outlives the frames
}

// keepBuffer is the largest buffer of a frame that is kept for the next message, so
// that one huge message does not occupy memory for the rest of the connection.
const keepBuffer = 64 << 20

// ReadMessage reads the next message into m. It handles commands in between: PING is
// answered, ERROR becomes a [*PeerError], others are ignored. It returns io.EOF if the
// peer closed between two messages and io.ErrUnexpectedEOF if it closed inside one.
func (c *Conn) ReadMessage(m *Message) error {
	m.Frames = m.Frames[:0]
	for {
		ev, err := c.nextEvent()
		if err != nil {
			if len(m.Frames) > 0 || !c.dec.Between() {
				err = noEOF(err)
			}
			return err
		}
		if ev.Header.Command() {
			if err := c.onCommand(ev); err != nil {
				return err
			}
			continue
		}
		if ev.Kind != FrameStart {
			continue // the end of a frame that is in m already
		}
		// The body does not go through the decoder piece by piece: it is read straight
		// into its buffer, and the decoder is told to skip it.
		frame, err := c.readBody(m.buffer(len(m.Frames)), ev.Header.Size)
		if err != nil {
			return noEOF(err)
		}
		m.bufs[len(m.Frames)] = frame[:0]
		m.Frames = append(m.Frames, frame)
		if !ev.Header.More() {
			_, _, err := c.dec.Next(nil) // FrameEnd, so that Between holds
			return err
		}
	}
}

// buffer returns the reusable memory of frame i, empty.
func (m *Message) buffer(i int) []byte {
	for len(m.bufs) <= i {
		m.bufs = append(m.bufs, nil)
	}
	if cap(m.bufs[i]) > keepBuffer {
		m.bufs[i] = nil
	}
	return m.bufs[i][:0]
}

// readBody appends the current frame's body, of which no byte was consumed, to buf:
// first what was read ahead, then straight from the connection.
func (c *Conn) readBody(buf []byte, size uint64) ([]byte, error) {
	if size > uint64(^uint(0)>>1) {
		return nil, fmt.Errorf("zmtp: frame of %d bytes does not fit in memory", size)
	}
	n := min(uint64(len(c.in)), size)
	buf = append(buf, c.in[:n]...)
	c.in = c.in[n:]
	c.dec.Discard(n)
	for uint64(len(buf)) < size {
		if len(buf) == cap(buf) {
			buf = grow(buf, int(size))
		}
		room := buf[len(buf):min(cap(buf), int(size))]
		k, err := io.ReadFull(c.nc, room)
		buf = buf[:len(buf)+k]
		c.dec.Discard(uint64(k))
		if err != nil {
			return nil, err
		}
	}
	return buf, nil
}

// grow makes room for more of a frame of size bytes without trusting the size: it adds
// at most as much as has come already, and 1 MiB. So a peer must send what it has us
// allocate.
func grow(buf []byte, size int) []byte {
	bigger := make([]byte, len(buf), min(size, 2*len(buf)+1<<20))
	copy(bigger, buf)
	return bigger
}

// onCommand gathers a command's frame and handles it when it is complete.
func (c *Conn) onCommand(ev Event) error {
	switch ev.Kind {
	case FrameStart:
		c.command.Start()
		return nil
	case FrameBody:
		c.command.Add(ev.Body)
		return nil
	}
	name, data, err := ParseCommand(c.command.Bytes())
	if err != nil {
		return err
	}
	switch string(name) {
	case CommandPing:
		_, context, err := ParsePing(data)
		if err != nil {
			return err
		}
		c.writing.Lock()
		defer c.writing.Unlock()
		c.out = AppendPong(c.out, context)
		return c.flush()
	case CommandError:
		return peerError(data)
	case CommandReady:
		return errors.New("zmtp: a second READY")
	}
	return nil
}
