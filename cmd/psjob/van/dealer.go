package van

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

const (
	reconnectEvery   = 100 * time.Millisecond // as libzmq does
	handshakeTimeout = 10 * time.Second
	maxForeign       = 3       // answers in another protocol, in a row, after which the address must be wrong
	controlRoom      = 1 << 16 // control messages that may wait for one peer
)

// A dealer carries messages to one node, in the order of Send. It connects, and
// connects again by itself. Messages of which no byte or only a part was written when
// a connection broke go out on the next one. What was written and did not arrive is
// lost, as with ZeroMQ; PS_RESEND is for that.
//
// run is its only writer. Senders append to waiting under mu; data messages take a
// token of room first, which is returned when the message was written, so that at
// most the high-water mark of them wait, whether connected or not.
type dealer struct {
	name     string // of the node, for logs
	address  string
	identity []byte
	dialer   Dialer
	log      *slog.Logger
	verbose  bool
	stop     context.CancelFunc // of run
	give     func(error)        // ends the van: the peer is not a PS-lite node
	room     chan struct{}      // one token per data message that may wait
	some     chan struct{}      // signalled when a message was added; holds one signal

	mu      sync.Mutex // guards waiting, control, idle and empty
	waiting []outgoing
	control int           // how many of waiting are control messages
	idle    bool          // nothing waits and nothing is being written
	empty   chan struct{} // closed when idle becomes true; nil: nobody waits for it

	connected atomic.Bool
	lostAt    atomic.Int64 // when the last connection ended, in Unix nanoseconds; 0 before there was one
	failure   atomic.Value // string: why it is not connected
	messages  atomic.Int64
	bytes     atomic.Int64 // of frame bodies
	dropped   atomic.Int64 // control messages that found no room
}

// An outgoing message waits to be written.
type outgoing struct {
	frames  [][]byte
	control bool
	written func() // called when the frames are no longer needed; may be nil
}

// size returns how many bytes the message takes on the wire, and how many its frames'
// bodies have.
func (o outgoing) size() (wire, bodies int64) {
	for _, f := range o.frames {
		bodies += int64(len(f))
		wire += int64(len(f)) + int64(zmtp.FrameHeader(len(f), false).Len())
	}
	return wire, bodies
}

// newDealer returns a dealer that does not connect before run. identity is empty
// until this node has an id.
func newDealer(name, address, identity string, c Config) *dealer {
	d := &dealer{name: name, address: address, identity: []byte(identity), dialer: c.Dialer, log: c.Logger, verbose: c.Verbose > 0,
		room: make(chan struct{}, c.Watermark), some: make(chan struct{}, 1), idle: true}
	for range c.Watermark {
		d.room <- struct{}{}
	}
	return d
}

// send adds a message. A data message waits for room until ctx ends; control messages
// never wait, since readers send them, and two readers that wait for each other's
// rooms would stop two nodes for good. An acknowledgement or heartbeat beyond
// controlRoom is dropped and counted.
func (d *dealer) send(ctx context.Context, o outgoing) error {
	// Taken before the lock, as the wait may be long. noteSent returns it.
	if !o.control {
		select {
		case <-d.room:
		case <-ctx.Done():
			return fmt.Errorf("sending to %s: %w", d.name, context.Cause(ctx))
		}
	}
	d.mu.Lock()
	// The peer has been away for long. An ACK that is lost is asked for again, a
	// heartbeat is out of date.
	if o.control && d.control >= controlRoom {
		d.mu.Unlock()
		d.dropped.Add(1)
		return nil
	}
	d.waiting = append(d.waiting, o)
	d.idle = false
	if o.control {
		d.control++
	}
	d.mu.Unlock()
	select {
	case d.some <- struct{}{}:
	default:
	}
	return nil
}

// drain blocks until everything was written, or ctx ends.
func (d *dealer) drain(ctx context.Context) {
	d.mu.Lock()
	if d.idle {
		d.mu.Unlock()
		return
	}
	if d.empty == nil {
		d.empty = make(chan struct{})
	}
	empty := d.empty
	d.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
}

// retire ends the dealer once everything was written.
func (d *dealer) retire(ctx context.Context) {
	d.drain(ctx)
	d.stop()
}

// run connects and writes until ctx ends.
func (d *dealer) run(ctx context.Context) {
	var lastLog time.Time
	foreign := 0 // answers in another protocol, in a row
	for first := true; ctx.Err() == nil; first = false {
		if !first && !sleep(ctx, reconnectEvery) {
			return
		}
		err := d.connectAndServe(ctx)
		if ctx.Err() != nil {
			return
		}
		d.failure.Store(err.Error())
		// A peer that accepts and speaks something else, such as a web server, will
		// not become a scheduler. Refused connections may: nodes of a job start in
		// any order.
		foreign++
		var syntax *zmtp.SyntaxError
		if !errors.As(err, &syntax) {
			foreign = 0
		}
		if foreign == maxForeign && d.give != nil {
			d.give(fmt.Errorf("connecting to %s at %s (see DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT): %w", d.name, d.address, err))
			return
		}
		if d.verbose && time.Since(lastLog) > time.Second {
			d.log.Info("not connected; retrying", "to", d.name, "address", d.address, "error", err)
			lastLog = time.Now()
		}
	}
}

// connectAndServe makes one connection and uses it until it breaks: this goroutine
// writes, another reads, since only reading shows that the peer has closed. Whichever
// fails first closes the connection, which ends the other. It always returns an
// error.
func (d *dealer) connectAndServe(ctx context.Context) error {
	nc, err := d.dialer.DialContext(ctx, "tcp", d.address)
	if err != nil {
		return err
	}
	// What describe reports while the handshake lasts; an error replaces it. A peer
	// that accepts and stays silent would otherwise look unreachable.
	d.failure.Store("it accepts connections, but has not answered in ZeroMQ's protocol yet")
	counted := &countingConn{Conn: nc}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	shake, cancel := context.WithTimeout(ctx, handshakeTimeout)
	conn, err := zmtp.Handshake(shake, counted, zmtp.Config{SocketType: "DEALER", Identity: d.identity})
	cancel()
	if err != nil {
		return err
	}
	if kind := conn.Peer().SocketType; kind != "ROUTER" {
		return fmt.Errorf("%s is a %s socket, not a PS-lite node's ROUTER", d.address, kind)
	}
	d.connected.Store(true)
	d.lostAt.Store(0)
	defer func() {
		d.connected.Store(false)
		d.lostAt.Store(time.Now().UnixNano())
	}()
	var broken sync.WaitGroup
	gone := make(chan error, 1)
	broken.Go(func() {
		gone <- discard(conn)
		nc.Close() // ends a write that is blocked
	})
	err = d.writeBatches(ctx, conn, &counted.written, gone)
	nc.Close()
	broken.Wait()
	return err
}

// discard reads what a peer has no reason to send: commands, which the connection
// answers, and the end of the stream, by which a broken connection is noticed while
// nothing is written.
func discard(conn *zmtp.Conn) error {
	var m zmtp.Message
	for {
		// PINGs are answered inside of ReadMessage, by this goroutine.
		if err := conn.ReadMessage(&m); err != nil {
			return err
		}
	}
}

// writeBatches writes batches of whatever waits until the connection breaks.
func (d *dealer) writeBatches(ctx context.Context, conn *zmtp.Conn, written *atomic.Int64, gone <-chan error) error {
	var batch []outgoing
	for {
		batch = d.drainQueue(batch[:0])
		if len(batch) == 0 {
			select {
			case <-d.some:
			case err := <-gone:
				return errors.Join(errors.New("the peer closed the connection"), err)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}
		// The number of bytes that the kernel has taken decides which messages are
		// written again.
		before := written.Load()
		err := writeBatch(conn, batch)
		if err != nil {
			d.putBack(batch, written.Load()-before)
			return err
		}
		d.noteSent(batch)
	}
}

// writeBatch writes messages, small ones together to save system calls. After an
// error any prefix of the batch may have reached the kernel; putBack finds out how
// much.
func writeBatch(conn *zmtp.Conn, batch []outgoing) error {
	for _, o := range batch {
		if err := conn.Queue(o.frames...); err != nil {
			return err
		}
	}
	return conn.Flush()
}

// drainQueue moves all waiting messages to batch. If there are none, everything was
// written: the batch before was handed to the kernel, and nothing has been added
// since.
func (d *dealer) drainQueue(batch []outgoing) []outgoing {
	d.mu.Lock()
	defer d.mu.Unlock()
	batch = append(batch, d.waiting...)
	// The frames must not be kept alive by the array.
	clear(d.waiting)
	d.waiting = d.waiting[:0]
	if len(batch) == 0 {
		d.idle = true
		if d.empty != nil {
			close(d.empty)
			d.empty = nil
		}
	}
	return batch
}

// noteSent records that messages were written: it counts them, returns their room,
// and calls their written, which may release the memory of the frames. The batch is
// cleared for that.
func (d *dealer) noteSent(batch []outgoing) {
	control := 0
	for i, o := range batch {
		_, bodies := o.size()
		d.messages.Add(1)
		d.bytes.Add(bodies)
		if o.control {
			control++
		} else {
			d.room <- struct{}{}
		}
		if o.written != nil {
			o.written()
		}
		batch[i] = outgoing{}
	}
	d.mu.Lock()
	d.control -= control
	d.mu.Unlock()
}

// putBack keeps for the next connection what was not wholly written, in front of what
// has come since. A message that was written in part is repeated from its beginning:
// the peer drops the part with the connection.
func (d *dealer) putBack(batch []outgoing, written int64) {
	out := 0
	// Messages are counted off in order against the bytes that the kernel took. The
	// first that is not wholly covered is the one that was cut.
	for out < len(batch) {
		wire, _ := batch[out].size()
		if wire > written {
			break
		}
		written -= wire
		out++
	}
	rest := append([]outgoing(nil), batch[out:]...)
	d.noteSent(batch[:out])
	d.mu.Lock()
	d.waiting = append(rest, d.waiting...)
	d.mu.Unlock()
}

// state describes the connection, for logs about waits: the last error says why a
// node is not reached.
func (d *dealer) state() string {
	if d.connected.Load() {
		return "connected"
	}
	if why, ok := d.failure.Load().(string); ok {
		return "not connected: " + why
	}
	return "not connected yet"
}

// countingConn counts the bytes that the kernel has taken. It is the measure of what
// putBack must not repeat: the zmtp.Conn on top may hold bytes in its buffer.
type countingConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}

// sleep waits, and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
