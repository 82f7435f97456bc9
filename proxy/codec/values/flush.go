package values

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// The residual of a worker's pushes goes along with its next ones. When there are no
// more, it can go out as a last push of the proxy's own, if the servers are known to
// add pushes up and not to count them ([Options.Adds]): to each server, in the
// worker's name, in messages like its last push but with timestamps that PS-lite does
// not reach. The server answers the worker; the proxy beside the server recognizes
// the timestamp and informs this proxy instead (modeAnswer), so that no process of
// the job sees any of it.
//
// A worker that is about to end says so with a barrier that servers take part in. The
// barrier is held back until the servers have answered: otherwise the scheduler would
// release the servers, and they would end without the last push.
//
// An own push that is lost is sent again only in jobs with PS_RESEND, whose servers
// recognize repetitions. Elsewhere a connection that breaks loses it, as it loses a
// worker's push.

// flushPatience bounds the wait for answers when the proxy ends. barrierPatience bounds
// how long a barrier is held back: nothing passes on its connection meanwhile,
// heartbeats included, and a node that is silent for too long counts as dead.
// flushRepeat is after how long a push without an answer is sent again, in jobs with
// PS_RESEND.
const (
	flushPatience   = 10 * time.Second
	barrierPatience = 2 * time.Second
	flushRepeat     = 500 * time.Millisecond
	// mostOwn bounds one own push, in bytes of values: the other proxy holds it whole.
	mostOwn = 16 << 20
)

// ownPush is a push of the proxy's own.
type ownPush struct {
	sender   *Sender
	answered chan struct{}

	// Of [Codec.mu].
	frames [][]byte // once answered only the meta, which another ACK would need
	done   bool
}

// mostOwns bounds the own pushes that are kept. Answered ones are kept because their
// answer may be repeated, and each repetition wants an ACK.
const mostOwns = 1024

// nextOwn numbers an own push, downward from the end of the range that no process uses.
// The router numbers its own messages from the beginning of that range.
func (c *Codec) nextOwn() int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own++
	return route.LastOwn - c.own%(1<<24)
}

// isOwn reports whether a timestamp is the proxies' own, so that the values of its
// message must stay as they are: a move compares values to the last bit. Parts of
// requests that were split by a placement made before the run are like any other
// message of the job.
func isOwn(timestamp int32) bool {
	return timestamp >= route.FirstExact && timestamp <= route.LastOwn
}

// isOurs reports whether a timestamp is of an own push of this codec.
func isOurs(timestamp int32) bool { return isOwn(timestamp) && timestamp > route.LastOwn-(1<<24) }

// streamsOf returns the streams of a process, or all if node is empty. The map is the
// caller's; a stream in it may be dropped meanwhile, which its own lock makes harmless.
func (c *Codec) streamsOf(origin, node string) map[owner]*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := map[owner]*stream{}
	for o, st := range c.streams {
		if node == "" || o.origin == origin && o.node == node {
			of[o] = st
		}
	}
	return of
}

// Flush ends thresholding, of the planner's rules as well, since the proxy is about
// to end. If servers add pushes up it sends the residuals and blocks until the
// servers have answered. Elsewhere residuals go along with pushes that still come,
// and [Codec.Save] keeps the rest.
func (c *Codec) Flush(ctx context.Context) error {
	c.mu.Lock()
	c.ended = true
	c.rules.Store(&ruleSet{})
	c.mu.Unlock()
	if !c.adds {
		return nil
	}
	return c.flush(ctx, "", "")
}

// unkept returns how many values of residuals are in memory alone, where the next
// proxy will not find them.
func (c *Codec) unkept() (values int) {
	for _, st := range c.streamsOf("", "") {
		st.mu.Lock()
		for _, l := range st.dense {
			if l.extent == nil {
				n, _ := l.Residual()
				values += n
			}
		}
		for _, l := range st.narrow {
			if l.extent == nil {
				n, _ := l.Residual()
				values += n
			}
		}
		st.mu.Unlock()
	}
	return values
}

// drainPause is how long nothing must have drained before AwaitDrained gives up: the
// workers have stopped pushing.
const drainPause = time.Second

// AwaitDrained blocks, after Flush, while residuals in memory alone still drain with
// the workers' pushes, and returns how many values are left.
func (c *Codec) AwaitDrained(ctx context.Context) (values int) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	least, since := c.unkept(), c.now()
	for values = least; values > 0 && c.now().Sub(since) < drainPause; values = c.unkept() {
		if values < least {
			least, since = values, c.now()
		}
		select {
		case <-ctx.Done():
			return values
		case <-look.C:
		}
	}
	return values
}

// flush sends the residuals of a process's pushes, or of all processes' if node is
// empty, and blocks until the servers have answered.
func (c *Codec) flush(ctx context.Context, origin, node string) error {
	var sent []*ownPush
	failed := error(nil)
	if node != "" { // what a proxy before this one has just left is the worker's, too
		_, failed = c.takeOver("")
	}
	// Keys of these processes must not move from here on: an own push goes to the
	// server that has them now. settle waits for moves that have begun already.
	defer c.sending(processes(c.streamsOf(origin, node)))()
	if err := c.settle(ctx, c.streamsOf(origin, node)); err != nil {
		return err
	}
	for o, st := range c.streamsOf(origin, node) {
		pushes, err := c.flushStream(st, o)
		sent = append(sent, pushes...)
		failed = errors.Join(failed, err)
	}
	return errors.Join(failed, c.awaitAnswers(ctx, sent))
}

// flushStream makes and queues the last pushes of one stream.
func (c *Codec) flushStream(st *stream, o owner) ([]*ownPush, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.dense)+len(st.narrow) == 0 {
		return nil, nil
	}
	s := st.sender
	// A push can be made only in the image of one of the worker's, on a link that is
	// open. If some answers bypass this proxy, the answer to an own push could reach
	// the worker, which did not ask.
	if s == nil || st.template == nil || !c.hearsAll(s.link.Acceptor) || st.template.dialect == pslite.BytePSRaw {
		c.counts.why(ReasonNoFlush)
		return nil, fmt.Errorf("residuals for %s cannot be sent: no link there, fewer links back than there, or BytePS, which answers on the requester's connection", o.server)
	}
	var sent []*ownPush
	var parts []waiting
	// The stream forgets what it hands out, and commits that. A kill from here on
	// loses at most the parts that were not sent, and never sends anything twice.
	st.guarded(func() { parts = st.empty() })
	for _, part := range parts {
		timestamp := c.nextOwn()
		frames := st.template.push(timestamp, part)
		own := &ownPush{sender: s, answered: make(chan struct{}), frames: frames}
		c.expect(timestamp, own)
		sent = append(sent, own)
		s.queue(frames)
	}
	c.counts.flushed(len(sent))
	return sent, nil
}

// expect keeps an own push until its answer comes. It makes room by dropping answered
// ones.
func (c *Codec) expect(timestamp int32, own *ownPush) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.owns) >= mostOwns {
		maps.DeleteFunc(c.owns, func(_ int32, old *ownPush) bool { return old.done })
	}
	c.owns[timestamp] = own
}

// unanswered returns the frames of an own push, nil once it was answered.
func (c *Codec) unanswered(own *ownPush) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if own.done {
		return nil
	}
	return own.frames
}

// answered records that a server has answered an own push, and wakes whoever waits for
// it.
func (c *Codec) answered(timestamp int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if own := c.owns[timestamp]; own != nil && !own.done {
		own.done = true
		own.frames = own.frames[:1]
		close(own.answered)
	}
}

// awaitAnswers blocks until all pushes were answered, and repeats them where repeating
// is safe.
func (c *Codec) awaitAnswers(ctx context.Context, sent []*ownPush) error {
	ctx, cancel := context.WithTimeout(ctx, flushPatience)
	defer cancel()
	// One deadline for all answers: the barrier behind them waits for the slowest
	// only.
	again := time.NewTicker(flushRepeat)
	defer again.Stop()
	for _, own := range sent {
		for waiting := true; waiting; {
			select {
			case <-own.answered:
				waiting = false
			case <-again.C:
				if frames := c.unanswered(own); frames != nil && own.sender.resends() {
					own.sender.queue(frames)
				}
			case <-ctx.Done():
				c.counts.why(ReasonNoFlush)
				return fmt.Errorf("a final push was not answered: %w", ctx.Err())
			}
		}
	}
	return nil
}

// queue queues a message for the sender's link and wakes the relay. Any goroutine may
// call it.
func (s *Sender) queue(frames [][]byte) {
	s.ownMu.Lock()
	s.own = append(s.own, frames)
	s.ownMu.Unlock()
	s.link.Wake()
}

// Initiate implements [relay.Initiator]. It is called between messages of the job, so
// that an own push never interrupts one, and it is in order behind the worker's last.
func (s *Sender) Initiate(dst []byte) (head []byte, ok bool) {
	s.ownMu.Lock()
	if len(s.own) == 0 {
		s.ownMu.Unlock()
		return dst, false
	}
	frames := s.own[0]
	s.own = s.own[1:]
	s.ownMu.Unlock()
	s.alters()
	dst = append(dst, byte(len(frames)))
	for _, f := range frames {
		dst = binary.AppendUvarint(dst, uint64(len(f)))
		dst = append(dst, f...)
	}
	return append(dst, modeOwn), true
}

// readOwn reads what Initiate wrote. The frames are slices of src.
func readOwn(src []byte) (frames [][]byte, err error) {
	if len(src) == 0 || src[0] == 0 || src[0] > 8 {
		return nil, fmt.Errorf("%w: a message of no known number of frames", ErrCorrupt)
	}
	n := int(src[0])
	src = src[1:]
	for range n {
		var size int
		if size, src, err = uvarint(src); err != nil {
			return nil, err
		}
		var f []byte
		if f, src, err = cut(src, size); err != nil {
			return nil, err
		}
		frames = append(frames, f)
	}
	if len(src) > 0 {
		return nil, fmt.Errorf("%w: %d bytes behind a message", ErrCorrupt, len(src))
	}
	return frames, nil
}

// appendAnswer encodes a server's answer to an own push of the other proxy's, or its
// ACK: the timestamp, and the server's node id, which an ACK in return needs. It
// reports false for all other messages.
func (s *Sender) appendAnswer(dst []byte, m *pslite.Message) ([]byte, bool) {
	meta := &m.Meta
	switch {
	case meta.Control.Cmd == pslite.Ack && len(m.Data) == 0:
		// The signature has the timestamp of the message that it acknowledges, shifted
		// by the request bit.
		timestamp := int32(uint32(meta.Control.MsgSig)) >> 1
		if meta.Control.MsgSig&1 == 0 || !isOurs(timestamp) {
			return dst, false
		}
		dst = append(dst, answerAcked)
		return append(binary.LittleEndian.AppendUint32(dst, uint32(timestamp)), modeAnswer), true
	case meta.Data() && !meta.Request && meta.Push && isOurs(meta.Timestamp) && len(m.Data) == 0:
		dst = append(dst, answerCame)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(meta.Timestamp))
		dst = binary.AppendUvarint(dst, uint64(s.id))
		return append(dst, modeAnswer), true
	}
	return dst, false
}

const (
	answerCame byte = iota
	answerAcked
)

// readAnswer reads what appendAnswer wrote and wakes the waiter. With PS_RESEND the
// server also wants an ACK for its answer, in the worker's name, and repeats the answer
// until it gets one.
func (r *Receiver) readAnswer(src []byte) error {
	if len(src) < 5 || src[0] > answerAcked {
		return fmt.Errorf("%w: an answer of %d bytes", ErrCorrupt, len(src))
	}
	timestamp := int32(binary.LittleEndian.Uint32(src[1:]))
	if src[0] == answerAcked {
		return nil // the answer itself comes too
	}
	server, _, err := uvarint(src[5:])
	if err != nil {
		return err
	}
	var meta []byte
	r.codec.mu.Lock()
	// Kept also after it was answered: a repeated answer wants an ACK, too, or the
	// server repeats it again.
	own := r.codec.owns[timestamp]
	if own != nil {
		meta = own.frames[0]
	}
	r.codec.mu.Unlock()
	if own != nil && own.sender.resends() {
		own.sender.acknowledge(meta, timestamp, int32(server))
	}
	r.codec.answered(timestamp)
	return nil
}

// acknowledge queues the ACK of a server's answer to an own push, whose meta is given.
func (s *Sender) acknowledge(meta []byte, timestamp, server int32) {
	var det pslite.Detector
	var of, ack pslite.Meta
	d, err := det.Decode(meta, &of)
	if err != nil {
		return
	}
	of.Request, of.Timestamp = false, timestamp
	ack.Reset()
	ack.Control.Cmd, ack.Control.MsgSig = pslite.Ack, pslite.Signature(&of, server, s.id)
	s.queue([][]byte{ack.Append(nil, d)})
}
