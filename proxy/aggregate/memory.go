package aggregate

// All methods of this file are called with group.mu locked.

// reserve charges n bytes, and returns false where they are not there.
func (g *group) reserve(n int) bool {
	if g.bytes+n > g.opts.Bytes || !g.opts.Memory.TryReserve(n) {
		return false
	}
	g.bytes += n
	return true
}

// release returns n bytes, and wakes the queues that wait for memory.
func (g *group) release(n int) {
	if n == 0 {
		return
	}
	g.bytes -= n
	g.opts.Memory.Unreserve(n)
	for q := range g.starved {
		q.poke()
	}
	clear(g.starved)
}

// releaseMemory releases a batch's sum.
func (g *group) releaseMemory(b *batch) {
	n := len(b.sum)
	b.sum = nil
	g.release(n)
}

// leave notes that an item of a batch was written, or never will be. With the last one the lists
// are not needed any more.
func (g *group) leave(b *batch) {
	if b.waiting--; b.waiting == 0 {
		n := b.lists
		b.lists = 0
		g.release(n)
	}
}

// noteWritten releases what a queue's items have been written of: their share in the batches, and
// the sums that went with them.
func (g *group) noteWritten(q *Queue) {
	for _, b := range q.out {
		g.releaseMemory(b)
		g.leave(b)
	}
	q.out = q.out[:0]
}
