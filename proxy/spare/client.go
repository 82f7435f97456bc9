package spare

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// retryPause is how long a client waits before it connects again. Each try in vain doubles that, up to
	// mostPause times: a proxy that is replaced is soon back, one without spare servers never has any.
	retryPause = 100 * time.Millisecond
	mostPause  = 16
	// mostAhead and mostAheadBytes bound the frames that are written at once. Those behind them can
	// still be merged.
	mostAhead      = 4
	mostAheadBytes = 256 << 10
	// lowWater is how many unsent bytes a socket may have and still take more. It would otherwise take
	// megabytes, and with them frames that could be merged while the link is busy.
	lowWater = 64 << 10
	// leastApart is the size of values that are not copied to be written.
	leastApart = 16 << 10
)

// ClientOptions of a [Client].
type ClientOptions struct {
	// Dial returns a link that the server has accepted.
	Dial func(ctx context.Context) (Link, error)
	// Answer is called for each request that is over, one call at a time, by Run's goroutines. It must not
	// block for long.
	Answer func(Answer)
	// Room is called after answers, in the same way: the backlog has become less. It may be nil.
	Room func()
	Log  *slog.Logger
	// Traffic counts the bytes of its links. It may be nil.
	Traffic *Traffic
	// Merge makes that requests of several workers are merged while they wait for the link.
	Merge bool
	// Wait is how long a request waits for those of the other workers with which it can be merged. 0: it goes
	// as soon as the link is free.
	Wait time.Duration
	// Memory bounds values that are kept, so that the server can leave them out of answers to other workers' pulls.
	// nil: none are kept.
	Memory Reserver
}

// Link is a connection to a server.
type Link struct {
	net.Conn
	Keeps bool // its server is of a version that can leave out values that the client keeps
}

// Client sends requests to one spare server, and again after a link broke.
//
// mu guards what follows it. due has the answers for which Answer is to be called, in order: their requests
// do not wait any more. answering is held while Answer and Room are called, before mu if both are held.
type Client struct {
	opts    ClientOptions
	log     *slog.Logger
	pause   time.Duration // before it connects again
	more    chan struct{} // has an element if there may be frames to send
	refusal chan struct{} // has an element if due may have what cannot be sent

	answering sync.Mutex

	mu        sync.Mutex
	queue     queue
	due       []Answer
	connected bool
	free      int64
}

// NewClient returns a client. Nothing goes before Run.
func NewClient(o ClientOptions) *Client {
	c := &Client{opts: o, log: o.Log, pause: retryPause, more: make(chan struct{}, 1), refusal: make(chan struct{}, 1), queue: newQueue(o.Merge, o.Wait, o.Memory)}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.opts.Answer == nil {
		c.opts.Answer = func(Answer) {}
	}
	if c.opts.Room == nil {
		c.opts.Room = func() {}
	}
	return c
}

// Send lets a request wait for its turn. It does not block, and owns the request from then on; the memory of its
// values must not change, and Send does not change it. A request that waits already, by worker and timestamp, is
// dropped: a repetition. One that cannot be sent gets an answer with an error.
func (c *Client) Send(r *Request) {
	if !r.Push {
		r.Kind = 0
		for i := range r.Pieces {
			r.Pieces[i].Value = nil
		}
	}
	err := checkRequest(r)
	var shape uint64
	if err == nil && c.opts.Merge {
		shape = shapeOf(r)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.queue.holds(r.ask()):
	case err != nil:
		c.due = append(c.due, Answer{Request: r, Err: fmt.Errorf("a request to a spare server cannot be sent: %w", err)})
		poke(c.refusal)
	default:
		c.queue.addRequest(r, shape)
		poke(c.more)
	}
}

// poke makes a receive from a channel of one element return.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Backlog returns the number of requests without answer, and the bytes that they take.
func (c *Client) Backlog() (messages, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.messages, c.queue.bytes
}

// Connected reports whether there is a link, over which the server has sent something.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connected
}

// Free returns the bytes that are free in the store, as the server said last.
func (c *Client) Free() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.free
}

// Run connects, and keeps a link until ctx ends; then it returns nil. It is called once.
func (c *Client) Run(ctx context.Context) error {
	var told sync.WaitGroup
	told.Go(func() { c.tellRefused(ctx) })
	defer told.Wait()
	failed, pause := false, c.pause
	for ctx.Err() == nil {
		link, err := c.opts.Dial(ctx)
		if err == nil {
			var heard bool
			heard, err = c.useLink(ctx, link)
			if heard {
				failed, pause = false, c.pause
			}
		}
		if ctx.Err() == nil && !failed {
			failed = true // and not logged with each try
			c.log.Warn("a link to a spare server broke, or cannot be made; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, mostPause*c.pause)
	}
	return nil
}

// tellRefused answers requests that cannot be sent.
func (c *Client) tellRefused(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.refusal:
		}
		c.answering.Lock()
		c.answerDue()
		c.answering.Unlock()
	}
}

// answerDue calls Answer for all that is due. The caller holds answering.
func (c *Client) answerDue() {
	for {
		c.mu.Lock()
		if len(c.due) == 0 {
			c.mu.Unlock()
			return
		}
		a := c.due[0]
		c.due[0] = Answer{}
		c.due = c.due[1:]
		c.mu.Unlock()
		c.opts.Answer(a)
	}
}

// useLink sends and receives over a link until it or ctx ends, and closes it. heard is whether the server has sent
// something.
func (c *Client) useLink(ctx context.Context, link Link) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn := link.Conn
	defer conn.Close()
	context.AfterFunc(ctx, func() { conn.Close() })
	if err := holdBack(conn); err != nil {
		c.log.Debug("a link to a spare server takes more than is sent", "error", err)
	}
	c.mu.Lock()
	c.queue.sendAgain(link.Keeps)
	c.mu.Unlock()
	poke(c.more)
	var sending sync.WaitGroup
	var sendErr error
	sending.Go(func() {
		sendErr = c.sendFrames(ctx, conn)
		cancel() // lets the other direction end
	})
	err = c.receive(conn)
	cancel()
	sending.Wait()
	c.mu.Lock()
	heard, c.connected = c.connected, false
	c.queue.sendAgain(false)
	c.mu.Unlock()
	if errors.Is(err, net.ErrClosed) && sendErr != nil {
		err = sendErr
	}
	return heard, err
}

// holdBack has a socket take no more than lowWater beyond what is sent.
func holdBack(conn net.Conn) error {
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok { // that below TLS
		conn = c.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, lowWater)
	})
	return errors.Join(err, set)
}

// sendFrames writes frames until the link or ctx ends.
func (c *Client) sendFrames(ctx context.Context, conn net.Conn) error {
	for {
		c.mu.Lock()
		frames, wait := c.queue.takeFrames(mostAhead, mostAheadBytes)
		c.mu.Unlock()
		if len(frames) == 0 {
			var due <-chan time.Time
			if wait > 0 {
				due = time.After(wait)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-c.more:
			case <-due:
			}
			continue
		}
		bufs := appendFrames(nil, frames)
		n, err := bufs.WriteTo(conn)
		c.opts.Traffic.addSent(n)
		if err != nil {
			return err
		}
	}
}

// appendFrames appends the bytes of frames. Large values stay where they are.
func appendFrames(bufs net.Buffers, frames []*frame) net.Buffers {
	var b []byte
	for _, f := range frames {
		b = f.appendHead(b)
		if !f.push {
			continue
		}
		for i := range f.pieces {
			value := f.pieces[i].Value
			if len(value) < leastApart {
				b = append(b, value...)
				continue
			}
			bufs = append(bufs, b, value)
			b = nil
		}
	}
	if len(b) > 0 {
		bufs = append(bufs, b)
	}
	return bufs
}

// receive reads what the server sends, until the link ends.
func (c *Client) receive(conn net.Conn) error {
	in := bufio.NewReaderSize(c.opts.Traffic.reader(conn), readBuffer)
	for {
		body, err := readFrame(in)
		if err != nil {
			return err
		}
		r, err := decodeReply(body)
		if err != nil {
			return err
		}
		if err := c.hear(&r); err != nil {
			return err
		}
	}
}

// hear notes what the server has sent, and answers requests.
func (c *Client) hear(r *reply) error {
	c.answering.Lock()
	defer c.answering.Unlock()
	c.mu.Lock()
	c.connected, c.free = true, r.free
	ok := true
	if r.isAnswer {
		var requests []*Request
		var spared int
		requests, spared, ok = c.queue.takeAnswered(r)
		c.opts.Traffic.addSpared(spared)
		err := r.failure()
		for _, request := range requests {
			c.due = append(c.due, Answer{Request: request, Values: r.values, Err: err})
		}
	}
	c.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: an answer to a request that was not sent", errForm)
	}
	if !r.isAnswer {
		return nil
	}
	c.answerDue()
	c.opts.Room()
	return nil
}
