package zmtp

// Gather joins the pieces of one frame's body for somebody who needs it whole. A body
// that came in one piece is not copied. The zero value is ready; its buffer is reused
// from frame to frame, and grows only as bytes come, never by what a header claims. At
// most one of buf and whole has anything.
type Gather struct {
	buf   []byte
	whole []byte
}

// Start forgets the frame before.
func (g *Gather) Start() { g.buf, g.whole = g.buf[:0], nil }

// Add takes the next piece. While it is the only one it is referred to and not copied,
// so the caller must call [Gather.Keep] before it reuses the memory.
func (g *Gather) Add(piece []byte) {
	if g.whole == nil && len(g.buf) == 0 {
		g.whole = piece
		return
	}
	g.Keep()
	g.buf = append(g.buf, piece...)
}

// Keep copies the bytes that still lie in the caller's memory, for a frame that is
// unfinished when the chunk is used up.
func (g *Gather) Keep() {
	if g.whole != nil {
		g.buf = append(g.buf, g.whole...)
		g.whole = nil
	}
}

// Bytes returns the body so far, valid until the next Start, Add or reuse of
// the chunk.
func (g *Gather) Bytes() []byte {
	if g.whole != nil {
		return g.whole
	}
	return g.buf
}
