package relay

import (
	"net"
	"slices"
	"sync"
)

// maxHeld bounds the bytes held for one connection. When more come everything is written, and
// holding begins again with the message after that.
const maxHeld = 64 << 20

// hold keeps messages from the job's process for a while, starting between two messages. Reading
// from the link goes on meanwhile. It holds once in a connection's life: freed is made by the first
// Hold and closed when on ends. While held is not empty nothing else is written to the process.
//
// writing is locked before mu. It is held during a write, which takes as long as the process takes
// to read; mu is never held during I/O.
type hold struct {
	// writing serializes writes of held bytes, so that their order is kept.
	writing sync.Mutex
	mu      sync.Mutex // guards on, freed, over and held
	on      bool
	freed   chan struct{} // closed when the hold ends; nil before it began
	over    bool          // the connection has ended
	held    []byte
	writers sync.WaitGroup
}

// Hold keeps messages that come from now on from the job's process, until Release. It has no effect
// on connections without a codec, where it is unknown where messages begin, and after the first
// call.
func (c *Conn) Hold() {
	h := &c.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.freed == nil && !h.over {
		h.on, h.freed = true, make(chan struct{})
	}
}

// Release ends a hold, and writes what was held in a goroutine of its own: the direction may be
// blocked in a read.
func (c *Conn) Release() {
	h := &c.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.on {
		return
	}
	h.on = false
	close(h.freed)
	if len(h.held) > 0 && !h.over {
		h.writers.Go(func() { h.flush(c.Job, &c.ToJob, c.Keeping) }) // an error comes back to the next write
	}
}

// keep takes over bytes that are about to be written to the process, and reports whether it did.
// whole means that the process has got whole messages so far; otherwise holding cannot begin yet.
// It copies the bytes.
func (h *hold) keep(o *output, whole bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.on || len(h.held) == 0 && !whole || len(h.held)+o.waiting > maxHeld {
		return false
	}
	h.held = slices.Concat(append([][]byte{h.held}, o.vec...)...)
	o.reset()
	return true
}

// holds reports whether held bytes are still to be written.
func (h *hold) holds() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.held) > 0
}

// flush writes what was held. When it returns, by whichever goroutine they were written, all
// earlier bytes are with the kernel, and later ones may be written. k is nil where the connection
// is not kept.
func (h *hold) flush(dst net.Conn, flow *Flow, k *Keeping) error {
	h.writing.Lock()
	defer h.writing.Unlock()
	h.mu.Lock()
	held := h.held
	h.held = nil
	h.mu.Unlock()
	if len(held) == 0 {
		return nil
	}
	n, err := dst.Write(held)
	flow.out.Add(uint64(n))
	if k != nil {
		k.Wrote(n)
	}
	return err
}

// await blocks until a hold has ended; without one it returns at once.
func (h *hold) await() {
	h.mu.Lock()
	freed := h.freed
	h.mu.Unlock()
	if freed != nil {
		<-freed
	}
}

// endHold ends a hold for good: the connection has ended, or is about to by force. What is held is
// not written.
func (h *hold) endHold() {
	h.mu.Lock()
	h.over = true
	if h.on {
		h.on = false
		close(h.freed)
	}
	h.mu.Unlock()
}
