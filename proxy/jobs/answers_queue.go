package jobs

import "slices"

// backlog counts messages and their bytes.
type backlog struct{ messages, bytes int }

// addAll adds messages.
func (b *backlog) addAll(messages ...[]byte) {
	for _, m := range messages {
		b.messages++
		b.bytes += len(m)
	}
}

// takeAll takes messages away again.
func (b *backlog) takeAll(messages ...[]byte) {
	for _, m := range messages {
		b.messages--
		b.bytes -= len(m)
	}
}

// Attach implements [relay.Speaker].
func (c *answers) Attach(wake func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake = wake
}

// Receptive implements [relay.Speaker].
func (c *answers) Receptive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receptive = true
	c.wakeWriter()
}

// wakeWriter has the direction write the queue; the caller holds mu.
func (c *answers) wakeWriter() {
	if len(c.queue) > 0 && c.wake != nil {
		c.wake()
	}
}

// HasDue implements [relay.Speaker].
func (c *answers) HasDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.receptive && !c.over && len(c.queue) > 0
}

// Due implements [relay.Speaker].
func (c *answers) Due() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.receptive || c.over {
		return nil
	}
	due := c.queue
	c.queue = nil
	return due
}

// Sent implements [relay.Speaker].
func (c *answers) Sent(batch [][]byte, n int) { c.noteWritten(batch, n) }

// End implements [relay.Speaker].
func (c *answers) End(_, between bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) > 0 && between && c.receptive && !c.over {
		return false
	}
	c.over = true
	return true
}

// noteWritten notes that n bytes of a batch were written, which are all unless the write has
// failed. What was not written as a whole is queued again, before what was queued meanwhile, and
// waits for the next connection of the pair. That includes the message in which the write ended:
// nothing can follow on this connection, so the process never gets the rest of it, and drops a
// message without an end.
func (c *answers) noteWritten(batch [][]byte, n int) {
	left := batch
	for len(left) > 0 && n >= len(left[0]) {
		n -= len(left[0])
		left = left[1:]
	}
	c.mu.Lock()
	c.backlog.takeAll(batch[:len(batch)-len(left)]...)
	room := c.hasRoom()
	retired := c.retired
	if retired {
		// Whoever took the queue has not seen these, and does not come again.
		c.backlog.takeAll(left...)
	} else if len(left) > 0 {
		c.queue = slices.Concat(left, c.queue)
	}
	c.mu.Unlock()
	x := c.job
	switch {
	case retired && len(left) > 0 && x != nil:
		sayAgain(x, x.down, x.pendingDown, pair{c.peer, rankOf(c.sender)}, left)
	case retired && len(left) > 0:
		c.jobs.messages.count(lostOver, uint64(len(left)))
	}
	if room && x != nil {
		x.letGo()
	}
}

// sayAgain queues messages that a connection which no longer serves the pair could not write.
func sayAgain[C line](x *job, lines map[pair]C, pending map[pair][][]byte, p pair, messages [][]byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.gone {
		x.lose(lostOver, uint64(len(messages)))
		return
	}
	say(x, lines, pending, p, messages...)
}

// full implements line. If the queue has no room, the job is told when it has again.
func (c *answers) full(messages, bytes int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	full := c.backlog.messages+messages >= mostQueued || c.backlog.bytes+bytes >= mostQueuedBytes
	c.holdsUp = c.holdsUp || full
	return full
}

// hasRoom reports, once after full, that half of the queue has gone; the caller holds c.mu.
func (c *answers) hasRoom() bool {
	if !c.holdsUp || c.backlog.messages > mostQueued/2 || c.backlog.bytes > mostQueuedBytes/2 {
		return false
	}
	c.holdsUp = false
	return true
}

// enqueue queues a message for the process, and reports false where the connection takes none any
// more. It does not block.
func (c *answers) enqueue(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.closed {
		return false
	}
	c.queue = append(c.queue, b)
	c.backlog.addAll(b)
	c.wakeWriter()
	return true
}

// retire returns the queue, and has enqueue refuse more.
func (c *answers) retire() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over, c.retired = true, true
	return c.takeQueue()
}

// discard empties the queue, and returns the number of messages in it.
func (c *answers) discard() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return uint64(len(c.takeQueue()))
}

// takeQueue empties the queue and returns it; the caller holds c.mu.
func (c *answers) takeQueue() [][]byte {
	left := c.queue
	c.queue = nil
	c.backlog.takeAll(left...)
	return left
}
