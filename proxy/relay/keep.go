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

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// ErrBroken is that the link of a connection that is kept broke: [Conn.Run] has left
// the job's process its connection, and another Conn can go on with it.
var ErrBroken = errors.New("the link broke")

// Keeping is what a Conn needs whose connection may go on over another link when
// this one breaks (package keep).
type Keeping struct {
	Window *keep.Window // of what the job's process sends
	// Begun and FarBegun say that the streams to Far and to Job had begun on a link
	// before: there is no greeting any more.
	Begun, FarBegun bool
	// Skip is how many bytes that come from Far the process has got already.
	Skip uint64
	// Wrote is called with the number of bytes written to Job.
	Wrote func(n int)
	// Ended is called when the process's stream has ended, before Far gets the end.
	Ended func()
	// FarEnded is called when the stream from Far has ended, with the number of
	// bytes that are still to be written to Job. It returns ErrBroken where that was
	// not all.
	FarEnded func(left int) error
	// Closed is called when Job has received the end of the stream from Far.
	Closed func()
	// FarClosed waits until the process at the far end has received the end of this
	// one's stream, and returns ErrBroken where it seems that it has not.
	FarClosed func(k *Keeping) error

	breaking sync.Once
	broken   chan struct{} // closed when the link is
	farOver  atomic.Bool   // what comes from Far has ended
}

// Keep makes the connection one that is kept, before Run.
func (c *Conn) Keep(k *Keeping) {
	k.broken = make(chan struct{})
	c.Keeping = k
}

// Broken is closed when the link is broken.
func (k *Keeping) Broken() <-chan struct{} { return k.broken }

// FarOver reports whether what comes from Far has ended, in order. From then on nobody
// notices that the link breaks.
func (k *Keeping) FarOver() bool { return k.farOver.Load() }

func (k *Keeping) breaks() { k.breaking.Do(func() { close(k.broken) }) }

// Break has Run return with [ErrBroken]. The connection is one that is kept.
func (c *Conn) Break() {
	c.Keeping.breaks()
	c.abort()
	Reset(c.Far)
}

// broke ends both directions without touching the process's connection.
func (c *Conn) broke() {
	c.Keeping.breaks()
	Reset(c.Far)
	c.hold.endHold()
	_ = c.Job.SetDeadline(time.Now()) // one that is closed wakes by itself
}

// isFar reports whether a direction's error is one of the link. up: of the direction
// to Far.
func isFar(err error, up bool) bool {
	if errors.Is(err, ErrBroken) {
		return true
	}
	var side *sideError
	return errors.As(err, &side) && side.write == up
}

// wrote records written bytes: to the link, in the window, as far as message
// boundaries are known; to the process, for the far proxy.
func (d *direction) wrote(n int) {
	switch {
	case d.keeping == nil:
	case d.window == nil:
		d.keeping.Wrote(n)
	case d.greeted:
		d.window.Sent(d.in.w-d.in.r, d.side.between())
	}
}

// keptEnd tells the far proxy that the process's stream has ended, or finds out
// whether the link's has, in order.
func (d *direction) keptEnd() error {
	switch {
	case d.keeping == nil:
		return nil
	case d.window == nil:
		return d.keeping.FarEnded(d.in.w - d.in.r)
	}
	d.keeping.Ended()
	return nil
}

// keptClosed is called when the destination has received the end of the stream.
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

// skipped leaves out what the process has got over another link, and returns how
// many bytes are left to write.
func (d *direction) skipped() int {
	k := min(d.skip, uint64(d.out.waiting))
	d.skip -= k
	d.out.drop(int(k))
	return d.out.waiting
}

// drop removes bytes from the beginning of the output.
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

// lacksRoom is from how many bytes of an incomplete message on it is looked whether
// the kernel's queue has room for the rest.
const lacksRoom = 32 << 10

// bulk is how many bytes of a stream without messages are worth a splice, until whose
// end the connection cannot be taken up again.
const bulk = 256 << 10

// carryAsItIs is [direction.run] without a codec.
func (d *direction) carryAsItIs(m *Memory) error {
	defer d.in.release()
	if err := d.in.init(d.src, m); err != nil {
		return err
	}
	d.out.conn, d.in.window = d.dst, d.window
	return d.copy()
}

// copy carries a stream whose bytes are passed as they are, of a connection that is
// kept: what there is at a time, in the kernel where it is much.
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
			if err := d.move(n); err != nil {
				return err
			}
		}
		if err := d.fill(); err != nil {
			return d.end(err)
		}
	}
}

// queued is how many bytes that were not read the kernel could move, where the last
// read was full.
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

// asItIs is the side of a stream that is passed as it is.
type asItIs struct{ side }

func (asItIs) between() bool { return false } // nobody knows
func (asItIs) written()      {}
func (asItIs) close()        {}
func (asItIs) rest(in *input, out *output) error {
	out.lend(in.bytes())
	in.r = in.w
	return nil
}
func (asItIs) moved(uint64, *output) error { return nil }

// greet passes a READY command to the codecs that want it.
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
