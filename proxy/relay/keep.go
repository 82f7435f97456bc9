package relay

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/keep"
)

// ErrBroken means that the link of a kept connection broke. [Conn.Run] has left the job's process
// its connection, and another Conn can go on with it over another link.
var ErrBroken = errors.New("the link broke")

// Keeping is what a Conn needs to survive a broken link (package keep). The functions are called by
// the directions' goroutines.
type Keeping struct {
	Window *keep.Window // of the stream that the job's process sends
	// Begun and FarBegun mean that the streams to Far and to Job began over an earlier link, so no
	// greeting comes any more.
	Begun, FarBegun bool
	// Skip is the number of bytes from Far that the process has already got over an earlier link;
	// they come again and are dropped.
	Skip uint64
	// Wrote is called with the number of bytes written to Job, which the far proxy's window may
	// then drop. The goroutine of [Conn.Release] may call it too.
	Wrote func(n int)
	// Ended is called when the process's stream has ended, before the end is passed to Far.
	Ended func()
	// FarEnded is called when the stream from Far has ended, with the number of bytes of it that
	// have come beyond those that the process had got over earlier links: written to Job, held for
	// it, or still to be written. It is negative while bytes are skipped. It returns ErrBroken where
	// the stream is not complete: then the link broke, and this is no end.
	FarEnded func(came int) error
	// Closed is called when Job has received the end of the stream from Far.
	Closed func()
	// FarClosed waits until the process at the far end has received the end of this one's stream.
	// It returns ErrBroken where it seems that it has not.
	FarClosed func(k *Keeping) error

	breaking sync.Once
	broken   chan struct{} // closed when the link breaks
	farOver  atomic.Bool   // the stream from Far has ended, and Job has received the end
}

// Keep makes the connection a kept one. It is called before Run.
func (c *Conn) Keep(k *Keeping) {
	k.broken = make(chan struct{})
	c.Keeping = k
}

// Broken returns a channel that is closed when the link breaks.
func (k *Keeping) Broken() <-chan struct{} { return k.broken }

// FarOver reports whether the stream from Far has ended in order. From then on nothing is read from
// the link, so nobody would notice that it breaks.
func (k *Keeping) FarOver() bool { return k.farOver.Load() }

// isBroken reports whether the link of a kept connection has broken; k may be nil.
func (k *Keeping) isBroken() bool {
	if k == nil {
		return false
	}
	select {
	case <-k.broken:
		return true
	default:
		return false
	}
}

func (k *Keeping) breaks() { k.breaking.Do(func() { close(k.broken) }) }

// Break breaks the link of a kept connection: Run returns [ErrBroken], also where neither direction
// uses the link at the moment. Both may wait for the process: one that has nothing to say and one
// that does not read, or that has got the end of the stream from Far. Once Run is about to return,
// Break has no effect.
func (c *Conn) Break() {
	c.Keeping.breaks()
	c.abort()
	c.failing.Do(func() {
		c.failed = ErrBroken
		c.broke()
	})
}

// broke ends both directions without touching the process's connection, except for its deadline,
// which wakes a direction that reads from it or writes to it. Run clears the deadline.
func (c *Conn) broke() {
	c.Keeping.breaks()
	sock.Reset(c.Far)
	c.hold.endHold()
	_ = c.Job.SetDeadline(time.Now()) // one that is closed wakes by itself
}

// isFar reports whether a direction's error is one of the link; up is the direction to Far.
func isFar(err error, up bool) bool {
	if errors.Is(err, ErrBroken) {
		return true
	}
	var side *sideError
	return errors.As(err, &side) && side.write == up
}

// wrote accounts for n written bytes of a kept connection. In the direction to Far the window
// learns how many bytes read were not sent yet, and whether a message ends here: what was sent up
// to there can be encoded anew for another link. In the direction to Job the far proxy learns what
// has arrived.
func (d *direction) wrote(n int) {
	switch {
	case d.keeping == nil:
	case d.window == nil:
		d.keeping.Wrote(n)
	case d.greeted:
		d.window.Sent(d.in.w-d.in.r, d.side.between())
	}
}

// keptEnd is called when a kept connection's source has ended. To Far it announces the end; to Job
// it asks whether this is the end of the stream or of the link.
func (d *direction) keptEnd() error {
	switch {
	case d.keeping == nil:
		return nil
	case d.window == nil:
		return d.keeping.FarEnded(d.handed + d.in.w - d.in.r - int(d.skip))
	}
	d.keeping.Ended()
	return nil
}

// keptClosed is called when a kept connection's destination was sent the end of the stream.
func (d *direction) keptClosed() error {
	switch {
	case d.keeping == nil:
		return nil
	case d.window == nil:
		d.keeping.Closed()
		d.keeping.farOver.Store(true)
		return nil
	}
	return d.keeping.FarClosed(d.keeping)
}

// skipped drops the bytes of the output that the process got over an earlier link, and returns how
// many bytes are left to write.
func (d *direction) skipped() int {
	k := min(d.skip, uint64(d.out.waiting))
	d.skip -= k
	d.out.drop(int(k))
	return d.out.waiting
}

// drop removes n bytes from the beginning of the output.
func (o *output) drop(n int) {
	o.waiting -= n
	i := 0
	for ; i < len(o.vec) && n >= len(o.vec[i]); i++ {
		n -= len(o.vec[i])
	}
	o.vec = slices.Delete(o.vec, 0, i)
	if n > 0 {
		o.vec[0] = o.vec[0][n:]
	}
}

// lacksRoom is the size of an incomplete message, in bytes, from which on the window checks whether
// the kernel's queue has room for the rest. Below it the queue always has.
const lacksRoom = 32 << 10

// bulk is the number of queued bytes that make a splice worthwhile in a stream without messages.
// Until a splice is over the connection cannot be resumed, so it must not be used for every few
// bytes.
const bulk = 256 << 10

// carryAsItIs is [direction.run] without a codec, for a kept connection.
func (d *direction) carryAsItIs(m *Memory) error {
	defer d.in.release()
	if err := d.in.init(d.src, m); err != nil {
		return err
	}
	d.out.conn, d.in.window = d.dst, d.window
	return d.copy()
}

// copy carries the stream of a kept connection whose bytes pass as they are. It writes what was
// read at a time, and lets the kernel move larger amounts.
func (d *direction) copy() error {
	d.side = asItIs{}
	d.greeted = true
	if d.window != nil {
		d.window.Bytes()
	}
	d.flow.inMessage.Store(false)
	for {
		d.out.lend(d.in.bytes())
		full := d.in.buf != nil && d.in.w == len(d.in.buf)
		d.in.r = d.in.w
		if err := d.flush(); err != nil {
			return err
		}
		if n := d.queued(full); n >= bulk && d.skip == 0 && !d.holds() {
			if _, err := d.move(n); err != nil {
				return err
			}
		}
		if err := d.fill(); err != nil {
			return d.end(err)
		}
	}
}

// queued returns the number of unread bytes that the kernel could move, or 0 where the last read
// was not full: then there is hardly more. Bytes that the window left in the queue for a resumption
// are not unread.
func (d *direction) queued(full bool) (n uint64) {
	if _, bare := d.dst.(*net.TCPConn); !bare || !full || d.in.raw == nil {
		return 0
	}
	d.in.raw.Control(func(fd uintptr) {
		if q, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ); err == nil && q > 0 {
			n = uint64(q)
		}
	})
	if d.window != nil {
		n -= min(n, d.window.Unacked())
	}
	return n
}

// asItIs is the side of a stream that passes unchanged. Its embedded side is nil: step and noRoom
// are never called.
type asItIs struct{ side }

func (asItIs) between() bool { return false } // nobody knows where messages end
func (asItIs) written()      {}
func (asItIs) close()        {}
func (asItIs) rest(in *input, out *output) error {
	out.lend(in.bytes())
	in.r = in.w
	return nil
}
func (asItIs) moved(uint64, *output) error { return nil }

// greet shows a READY command to the codecs that want it, and to e.ready.
func (e *encoder) greet(body []byte) {
	if e.ready != nil && bytes.HasPrefix(body, readyPrefix) {
		e.ready(body)
	}
	for _, who := range []any{e.sender, e.observer, e.gatherer} {
		g, ok := who.(Greeter)
		if !ok {
			continue
		}
		if name, data, err := zmtp.ParseCommand(body); err == nil && string(name) == zmtp.CommandReady {
			if r, err := zmtp.ParseReady(data); err == nil {
				g.Ready(r)
			}
		}
	}
}

var readyPrefix = append([]byte{byte(len(zmtp.CommandReady))}, zmtp.CommandReady...)
