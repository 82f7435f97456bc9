package jobs

import (
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"github.com/psidecar/psidecar/proxy/zmtp"
)

// Read implements net.Conn, for one goroutine. It returns everything that is buffered and may pass
// in one call, so that the relay writes it in one. An error of the stream comes after what passed
// before it.
//
// The body of a large frame that passes is read directly into p, and not buffered.
func (c *requests) Read(p []byte) (int, error) {
	// Between two calls the relay may have taken back the deadline by which this is woken, so what
	// waited is looked at again.
	c.later = false
	for {
		if n := c.handOn(p); n > 0 {
			return n, nil
		}
		if c.failed != nil {
			return 0, c.failed
		}
		// Messages of the router come first: parts of requests that the worker sent earlier may be
		// among them.
		if c.stream.between() && c.takeQueued() {
			continue
		}
		if c.stand() {
			return 0, errStands
		}
		if c.later {
			c.later = false
			if err := c.wait(); err != nil {
				return 0, err
			}
			continue
		}
		// The stream only counts the bytes of a body, so its position can be advanced here.
		if c.w == c.r && c.stream.left > readAhead && !c.stream.blind {
			// The body of a frame that passes: straight to the reader.
			p = p[:min(uint64(len(p)), c.stream.left)]
			n, err := c.read(p)
			c.stream.left -= uint64(n)
			if n > 0 || err != nil {
				return n, err
			}
			continue
		}
		need := c.lookAhead(len(p))
		if c.pass > 0 || need == 0 {
			continue
		}
		if err := c.fill(need); err != nil && (errors.Is(err, os.ErrDeadlineExceeded) || c.endQueue()) {
			return 0, err
		}
	}
}

// lookAhead follows the buffered bytes until most of them may pass, or a message has to go between.
// It returns how many unread bytes must be there to go on, and 0 where it stopped for another
// reason.
func (c *requests) lookAhead(most int) (need int) {
	for c.pass < most && (c.pass == 0 || !c.stream.between() || !c.hasQueued()) {
		begins := c.stream.between() && beginsMessage(c.buf[c.r+c.pass:c.w])
		n, passes, need, err := c.stream.next(c.buf[c.r+c.pass : c.w])
		switch {
		case errors.Is(err, errLater):
			c.later = true
			return 0
		case err != nil:
			c.failed = err
			return 0
		case n == 0:
			return need
		case !passes:
			c.skip = n
			return 0
		}
		// What is queued by now may be earlier requests of the process, which waited until just now:
		// the one just looked at passes because nothing waits before it any more.
		if begins {
			c.takeAllQueued()
		}
		// inspect has made a message due that must precede the one just looked at.
		if len(c.due) > 0 { // goes between what was there before and this
			c.before = c.pass
			c.pass += n
			return 0
		}
		c.pass += n
	}
	return 0
}

// endQueue is called at the end of the process's stream. It reports whether nothing is left to put
// in; from then on nothing can be.
func (c *requests) endQueue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) > 0 && c.stream.between() && c.far.done.Load() {
		return false
	}
	c.over = true
	return true
}

// handOn copies to p what may be handed on, in order, and returns how much.
func (c *requests) handOn(p []byte) (n int) {
	most := c.pass
	if len(c.due) > 0 {
		if c.before == 0 {
			n = copy(p, c.due)
			c.due = c.due[n:]
			return n
		}
		most = c.before
	}
	n = copy(p, c.buf[c.r:c.r+most])
	c.before = max(0, c.before-n)
	c.pass -= n
	c.r += n
	if c.pass == 0 {
		c.r += c.skip
		c.skip = 0
	}
	return n
}

// hasQueued reports whether messages of the router may be put in.
func (c *requests) hasQueued() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) > 0 && c.far.done.Load()
}

// takeQueued makes the first message of the queue due, and reports whether there was one.
func (c *requests) takeQueued() bool {
	c.mu.Lock()
	if len(c.queue) == 0 || !c.far.done.Load() {
		c.mu.Unlock()
		return false
	}
	c.due = c.queue[0]
	c.queued -= len(c.queue[0])
	c.queue[0] = nil // the array may stay for long
	c.queue = c.queue[1:]
	room := c.hasRoom()
	c.mu.Unlock()
	if x := c.routes.Load(); room && x != nil {
		x.letGo()
	}
	return true
}

// beginsMessage reports whether b begins with a message, and not with a command, such as the READY
// that nothing may precede.
func beginsMessage(b []byte) bool {
	h, n, err := zmtp.CutHeader(b)
	return err == nil && n > 0 && !h.Command()
}

// takeAllQueued makes all messages of the queue due, before what is due already.
func (c *requests) takeAllQueued() {
	c.mu.Lock()
	if len(c.queue) == 0 || !c.far.done.Load() {
		c.mu.Unlock()
		return
	}
	c.due = slices.Concat(append(c.queue, c.due)...)
	c.queue, c.queued = nil, 0
	room := c.hasRoom()
	c.mu.Unlock()
	if x := c.routes.Load(); room && x != nil {
		x.letGo()
	}
}

// fill reads more into the buffer, whose unread part must then hold need bytes. The buffer grows to
// little more than twice what has come, so that a size that a header merely claims costs no memory.
func (c *requests) fill(need int) error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	if c.r > 0 && (c.w == len(c.buf) || c.r+need > len(c.buf)) {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	if c.w == len(c.buf) { // never much more than has come, whatever is claimed
		size := max(readAhead, min(need, 2*len(c.buf)+1<<20))
		bigger := make([]byte, size)
		c.w = copy(bigger, c.buf[c.r:c.w])
		c.buf, c.r = bigger, 0
	} else if c.w == 0 && len(c.buf) > 1<<20 {
		c.buf = make([]byte, readAhead)
	}
	n, err := c.read(c.buf[c.w:])
	c.w += n
	return err
}

// read reads what there is. A deadline in the past has one of two reasons. Where enqueue or Halt
// has set it, read returns nothing and no error, and Read looks at the queue. Where the relay has
// set it, as its codec has a message, that error is returned once.
func (c *requests) read(p []byte) (int, error) {
	c.inMessage.Store(c.stream.inside || c.stream.left > 0 || c.r < c.w)
	n, err := c.tcp.Read(p)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, c.woken(err)
	}
	// A reset says nothing: a connection that this proxy resets reports the same error.
	if errors.Is(err, io.EOF) && !c.told.Load() {
		c.hungUp.Store(true)
	}
	if n > 0 {
		err = nil // it will come again
	}
	return n, err
}

// woken takes back a deadline that has passed. It returns the error if the relay has set it.
func (c *requests) woken(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tcp.SetReadDeadline(time.Time{})
	if c.expires {
		c.expires = false
		return err
	}
	return nil
}
