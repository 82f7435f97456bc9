package zmtp

import "errors"

// Queue writes one message. It may keep a copy of small frames until [Conn.Flush], or until
// 64 KiB are queued, and blocks until the kernel has taken the rest. The frames may be reused
// once it returns. An error leaves the stream unusable.
func (c *Conn) Queue(frames ...[]byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.queue(frames); err != nil {
		return err
	}
	if len(c.out) >= flushAt {
		return c.flush()
	}
	return nil
}

// Flush writes what [Conn.Queue] kept back.
func (c *Conn) Flush() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.flush()
}

// queue appends small messages to c.out. A message with a large frame is written at
// once from the caller's memory, behind what is queued. The caller holds c.writing.
func (c *Conn) queue(frames [][]byte) error {
	if len(frames) == 0 {
		return errors.New("zmtp: a message needs at least one frame")
	}
	large := false
	for _, f := range frames {
		large = large || len(f) >= copyBelow
	}
	if large {
		return c.writev(frames)
	}
	for i, f := range frames {
		c.out = AppendHeader(c.out, FrameHeader(len(f), i < len(frames)-1))
		c.out = append(c.out, f...)
	}
	return nil
}

func (c *Conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.nc.Write(c.out)
	c.out = c.out[:0]
	return err
}

// writev writes c.out and then frames with one system call if the connection can:
// headers and small frames are gathered in c.out, large frames stay where they are. The
// caller holds c.writing.
func (c *Conn) writev(frames [][]byte) error {
	need := len(c.out)
	for _, f := range frames {
		need += MaxHeader
		if len(f) < copyBelow {
			need += len(f)
		}
	}
	if cap(c.out) < need { // vec holds slices of c.out, so no append below may move it
		c.out = append(make([]byte, 0, need), c.out...)
	}
	vec, start := c.vec[:0], 0
	for i, f := range frames {
		c.out = AppendHeader(c.out, FrameHeader(len(f), i < len(frames)-1))
		if len(f) < copyBelow {
			c.out = append(c.out, f...)
			continue
		}
		vec = append(vec, c.out[start:], f)
		start = len(c.out)
	}
	if start < len(c.out) {
		vec = append(vec, c.out[start:])
	}
	c.vec = vec
	_, err := c.vec.WriteTo(c.nc) // consumes c.vec
	clear(vec)                    // so that the caller's memory is not kept alive
	c.vec, c.out = vec[:0], c.out[:0]
	return err
}
