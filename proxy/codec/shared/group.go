package shared

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Pauses between attempts to make a lane, each twice the one before.
const (
	againSoon   = 20 * time.Millisecond
	againSeldom = 5 * time.Second
)

const (
	readBuffer = 64 << 10
	// gather is the size up to which values are copied together for one write.
	gather = 16 << 10
)

// A Group is a [Source] with its lane, which it makes once there is something to share.
//
// It has one goroutine, run, from the first look until Close, and one more that writes
// while there is a lane; run reads meanwhile. Small values are written by the goroutine of
// the answer that has them: waking another takes longer. The Source knows nothing of
// either: it calls wake, which must not block, while its lock is held, and deliver, which
// takes writing before that lock.
type Group struct {
	*Source
	ID     ID
	dial   func(context.Context, ID) (net.Conn, error)
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
	more   chan struct{}  // signalled when there is something in the queue; holds one signal
	over   sync.WaitGroup // run

	writing sync.Mutex // held while frames are taken and written; guards the rest
	lane    net.Conn   // nil: none
	writer  laneWriter
}

// NewGroup returns a group whose lane is made by dial, which may block until its context
// ends. It keeps at most most bytes.
func NewGroup(most int, memory Reserver, dial func(context.Context, ID) (net.Conn, error)) (*Group, error) {
	id, err := NewID()
	if err != nil {
		return nil, fmt.Errorf("shared: naming a group: %w", err)
	}
	g := &Group{Source: NewSource(most, memory), ID: id, dial: dial, more: make(chan struct{}, 1)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.Source.wake, g.Source.deliver = g.look, g.writeOrLook
	return g, nil
}

// look wakes the lane's writer. The first time it has the lane made.
func (g *Group) look() {
	g.once.Do(func() { g.over.Go(g.run) })
	select {
	case g.more <- struct{}{}:
	default:
	}
}

// Close ends the lane, once no link is of the group any more. It does not wait for the
// goroutines; the memory is released when they have ended.
func (g *Group) Close() {
	g.cancel()
	go func() {
		g.over.Wait()
		g.Source.close()
	}()
}

// run makes the lane, and makes it again when it breaks, until Close.
func (g *Group) run() {
	for wait := againSoon; ; wait = min(2*wait, againSeldom) {
		conn, err := g.dial(g.ctx, g.ID)
		if err == nil {
			if began := g.use(conn); began {
				wait = againSoon
			}
		}
		select {
		case <-g.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// use serves a lane until it ends, and reports whether it had begun: a lane that the other
// end refuses must not be made again without a pause.
func (g *Group) use(conn net.Conn) (began bool) {
	stop := context.AfterFunc(g.ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	ended := make(chan struct{})
	g.setLane(conn)
	var writing sync.WaitGroup
	writing.Go(func() {
		g.write(conn, ended)
		conn.Close()
	})
	_ = g.read(bufio.NewReaderSize(conn, readBuffer)) // whatever it is, the lane is made again
	close(ended)
	conn.Close()
	writing.Wait()
	g.setLane(nil)
	g.mu.Lock()
	began = g.attached
	g.mu.Unlock()
	// After the writer has ended: frames that it still has are not counted as written on
	// the next lane.
	g.detach()
	return began
}

// setLane waits for the goroutine that is writing to the lane before.
func (g *Group) setLane(conn net.Conn) {
	g.writing.Lock()
	defer g.writing.Unlock()
	g.lane = conn
}

// write writes the queue until the lane ends.
func (g *Group) write(conn net.Conn, ended <-chan struct{}) {
	for {
		g.writing.Lock()
		some, err := g.writeQueue(conn)
		g.writing.Unlock()
		switch {
		case err != nil:
			return
		case some:
			continue
		}
		select {
		case <-g.more:
		case <-ended:
			return
		}
	}
}

// writeOrLook writes the queue, or has it written where that may take a while.
func (g *Group) writeOrLook() {
	if !g.mayWriteHere() || !g.writing.TryLock() {
		g.look()
		return
	}
	defer g.writing.Unlock()
	if g.lane == nil {
		g.look()
		return
	}
	if _, err := g.writeQueue(g.lane); err != nil {
		g.lane.Close()
	}
}

// writeQueue writes everything that waits, so that one system call has as much as possible,
// and measures how long that takes, which shows how fast the link is. It reports whether
// there was anything. The caller holds g.writing.
func (g *Group) writeQueue(conn net.Conn) (some bool, err error) {
	all := g.take()
	if len(all) == 0 {
		return false, nil
	}
	began := g.now()
	if err := g.writer.write(conn, all); err != nil {
		return true, err
	}
	g.wrote(all, g.now().Sub(began))
	return true, nil
}

// laneWriter holds the buffer of heads and small values.
type laneWriter struct{ heads []byte }

// write writes frames in order: heads and small values together, large values from the
// entry's own memory, which is not reused before the entry was written.
func (w *laneWriter) write(conn net.Conn, all []frame) error {
	w.heads = w.heads[:0]
	for i := range all {
		f := &all[i]
		w.heads = f.appendHead(w.heads)
		if f.kind != kindPut {
			continue
		}
		values := f.entry.onLane()
		if len(values) <= gather {
			w.heads = append(w.heads, values...)
			// Small frames wait for each other, but not beyond this many bytes.
			if len(w.heads) < 4*gather {
				continue
			}
			values = nil
		}
		b := net.Buffers{w.heads, values}
		if _, err := b.WriteTo(conn); err != nil {
			return err
		}
		w.heads = w.heads[:0]
	}
	if len(w.heads) == 0 {
		return nil
	}
	_, err := conn.Write(w.heads)
	return err
}
