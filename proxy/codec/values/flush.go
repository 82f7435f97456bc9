package values

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// What waits of a worker's pushes goes along with its next ones. When there are
// none any more it can go out as a last push of our own, if the servers are known
// to add up what they get and not to count pushes ([Options.Adds]): to each
// server, in the worker's name, in messages like its last push with timestamps
// that PS-lite does not reach. The server answers to the worker; its proxy, which
// knows such timestamps, tells ours instead, and no process of the job sees any
// of it.
//
// A worker that is about to end says so with a barrier that servers take part
// in. It is held back until the servers have answered.

// flushPatience is for how long answers are waited for at the proxy's end, and
// barrierPatience is how long a barrier is held back for them at most: nothing
// passes on its connection meanwhile, heartbeats among what waits. flushRepeat is
// when a push that was not answered is sent again, in jobs with PS_RESEND.
const (
	flushPatience   = 10 * time.Second
	barrierPatience = 2 * time.Second
	flushRepeat     = 500 * time.Millisecond
	// mostOwn bounds a push of our own, in bytes of values.
	mostOwn = 16 << 20
)

// ownPush is a push of our own.
type ownPush struct {
	sender   *Sender
	answered chan struct{}

	// Of [Codec.mu].
	frames [][]byte // of the answered one the meta alone, for another ACK
	done   bool
}

// mostOwns bounds the own pushes that are kept: those that were answered are
// for answers that come again.
const mostOwns = 1024

// nextOwn numbers a push of our own: the router's own begin at the other end.
func (c *Codec) nextOwn() int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own++
	return route.LastOwn - c.own%(1<<24)
}

// isOwn reports whether a timestamp is none of the job's, and the values of its
// message must stay as they are. Parts of requests whose keys were placed before
// the run are like any other message.
func isOwn(timestamp int32) bool {
	return timestamp >= route.FirstExact && timestamp <= route.LastOwn
}

func isOurs(timestamp int32) bool { return isOwn(timestamp) && timestamp > route.LastOwn-(1<<24) }

// streamsOf returns the streams of a process, or of all where node is empty.
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

// Flush ends thresholding, by the planner's rules too, since the proxy is about to
// end. Where servers add up what they get it sends what waits and waits for their
// answers; elsewhere that goes along with pushes that still come, and the rest is
// for [Codec.Save].
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

// unkept returns how many values wait in memory alone.
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

// drainPause is how long nothing must have gone of what waits before AwaitDrained
// gives up: its workers push no more.
const drainPause = time.Second

// AwaitDrained waits, after Flush, while what waits in memory alone goes along with
// the workers' pushes, and returns how many values still do.
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

// flush sends what waits of a process's pushes, or of all processes' where node
// is empty, and waits for the servers' answers.
func (c *Codec) flush(ctx context.Context, origin, node string) error {
	var sent []*ownPush
	failed := error(nil)
	if node != "" { // what a proxy before this one has just left is the worker's, too
		_, failed = c.takeOver("")
	}
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

// flushStream makes and sends the last pushes of one stream.
func (c *Codec) flushStream(st *stream, o owner) ([]*ownPush, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.dense)+len(st.narrow) == 0 {
		return nil, nil
	}
	s := st.sender
	if s == nil || st.template == nil || !c.hearsAll(s.link.Acceptor) || st.template.dialect == pslite.BytePSRaw {
		c.counts.why(ReasonNoFlush)
		return nil, fmt.Errorf("what waits for %s cannot be sent: there is no link there, or fewer back than there, or BytePS answers on the asker's connection", o.server)
	}
	var sent []*ownPush
	var parts []waiting
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

// expect keeps a push of our own for its answer.
func (c *Codec) expect(timestamp int32, own *ownPush) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.owns) >= mostOwns {
		maps.DeleteFunc(c.owns, func(_ int32, old *ownPush) bool { return old.done })
	}
	c.owns[timestamp] = own
}

// unanswered returns the frames of a push of our own, nil once it was answered.
func (c *Codec) unanswered(own *ownPush) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if own.done {
		return nil
	}
	return own.frames
}

// answered takes the news that a server has answered, or acknowledged, a push of
// ours.
func (c *Codec) answered(timestamp int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if own := c.owns[timestamp]; own != nil && !own.done {
		own.done = true
		own.frames = own.frames[:1]
		close(own.answered)
	}
}

// awaitAnswers waits for the answers to pushes, which it repeats.
func (c *Codec) awaitAnswers(ctx context.Context, sent []*ownPush) error {
	ctx, cancel := context.WithTimeout(ctx, flushPatience)
	defer cancel()
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
				return fmt.Errorf("a last push was not answered: %w", ctx.Err())
			}
		}
	}
	return nil
}

// queue has a message sent on the sender's link.
func (s *Sender) queue(frames [][]byte) {
	s.ownMu.Lock()
	s.own = append(s.own, frames)
	s.ownMu.Unlock()
	s.link.Wake()
}

// Initiate implements [relay.Initiator].
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

// readOwn reads what Initiate wrote.
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

// appendAnswer encodes a server's answer to a push of the other proxy's, or its
// ACK: timestamp, and the server's own ACK signature where the answer wants
// one. It reports false for all other messages.
func (s *Sender) appendAnswer(dst []byte, m *pslite.Message) ([]byte, bool) {
	meta := &m.Meta
	switch {
	case meta.Control.Cmd == pslite.Ack && len(m.Data) == 0:
		// The signature has the timestamp of what it acknowledges.
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
// server wants an ACK for its answer, in the worker's name.
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

// acknowledge queues the ACK of a server's answer to one of our pushes, of which
// the meta is given.
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
