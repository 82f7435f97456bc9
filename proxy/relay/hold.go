package relay

import (
	"net"
	"slices"
	"sync"
)

// maxHeld is how many bytes are held of one connection; more of them end its hold.
const maxHeld = 64 << 20

// hold keeps messages from the job's process, from one message's beginning on. It holds
// once: freed is made by the first Hold and closed when on ends. While held is not empty
// nothing else is written to the process.
type hold struct {
	// writing is held while what was held is written, which takes as long as the
	// process takes to read it; mu, which comes after it, never.
	writing sync.Mutex
	mu      sync.Mutex // guards on, freed, over and held
	on      bool
	freed   chan struct{} // closed when the hold ends; nil before it began
	over    bool          // the connection has ended
	held    []byte
	writers sync.WaitGroup
}

// Hold keeps the messages that come from now on from the job's process, until
// Release, where the connection has a codec: elsewhere it is not known where they
// begin. Reading goes on meanwhile.
func (c *Conn) Hold() {
	h := &c.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.freed == nil && !h.over {
		h.on, h.freed = true, make(chan struct{})
	}
}

// Release has the process get what was held.
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
		h.writers.Go(func() { h.flush(c.Job, &c.ToJob) }) // an error comes back to the next write
	}
}

// keep takes bytes that are about to be written to the process, if they must be
// held. whole says that the process has got whole messages so far.
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

// holds reports whether the process has yet to get something.
func (h *hold) holds() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.held) > 0
}

// flush writes what was held; once it returns the rest can be written.
func (h *hold) flush(dst net.Conn, flow *Flow) error {
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
	return err
}

// await waits for the end of a hold.
func (h *hold) await() {
	h.mu.Lock()
	freed := h.freed
	h.mu.Unlock()
	if freed != nil {
		<-freed
	}
}

// endHold is called when the connection has ended, or is about to by force.
func (h *hold) endHold() {
	h.mu.Lock()
	h.over = true
	if h.on {
		h.on = false
		close(h.freed)
	}
	h.mu.Unlock()
}
