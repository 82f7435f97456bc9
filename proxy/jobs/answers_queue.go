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

// hasQueued reports whether messages of the router wait.
func (c *answers) hasQueued() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) > 0
}

// writeQueued writes the queue if the stream is between two messages; the caller holds writing.
// Messages queued meanwhile are written too.
func (c *answers) writeQueued() error {
	if c.torn != nil || !c.stream.between() || !c.process.done.Load() {
		return c.torn
	}
	for {
		c.mu.Lock()
		batch := c.queue
		c.queue = nil
		c.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		// A batch of messages goes in one write.
		n, err := c.write(slices.Concat(batch...))
		c.noteWritten(batch, n)
		if err != nil {
			return err
		}
	}
}

// noteWritten notes that n bytes of a batch were written, which are all unless the write has
// failed. What was not written as a whole is queued again, before what was queued meanwhile, and
// waits for the next connection of the pair. That includes the message in which the write ended:
// nothing can follow on this connection (torn), so the process never gets the rest of it, and
// drops a message without an end. The caller holds writing.
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
		x.sayAgain(pair{c.peer, rankOf(c.sender)}, left)
	case retired && len(left) > 0:
		c.jobs.messages.count(lostOver, uint64(len(left)))
	}
	if room && x != nil {
		x.letGo()
	}
}

// sayAgain queues messages for a worker which a connection that no longer serves the pair could
// not write.
func (x *job) sayAgain(p pair, messages [][]byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.gone {
		x.lose(lostOver, uint64(len(messages)))
		return
	}
	say(x, x.down, x.pendingDown, p, messages...)
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

// wakeWriter has the queue written by a goroutine of its own, unless one is on its way; the caller
// holds mu. Writing may block for as long as the process does not read, and the caller holds the
// job's lock.
func (c *answers) wakeWriter() {
	if len(c.queue) > 0 && !c.waking && !c.over && !c.closed && c.process.done.Load() {
		c.waking = true
		c.writers.Go(c.wake)
	}
}

// wake writes the queue. If the relay's goroutine is writing it waits for that, and mostly finds
// the queue empty.
func (c *answers) wake() {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	c.waking = false
	c.mu.Unlock()
	c.writeQueued() // an error comes back to the next Write or Read
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
