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
	// gather is how many bytes of small values are copied together for one write.
	gather = 16 << 10
)

// A Group is a [Source] with its lane, which it makes once there is something to share.
type Group struct {
	*Source
	ID     ID
	dial   func(context.Context, ID) (net.Conn, error)
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
	more   chan struct{} // there is something in the queue
	over   sync.WaitGroup
}

// NewGroup returns a group whose lane is made by dial. It keeps most bytes at most.
func NewGroup(most int, memory Reserver, dial func(context.Context, ID) (net.Conn, error)) (*Group, error) {
	id, err := NewID()
	if err != nil {
		return nil, fmt.Errorf("shared: naming a group: %w", err)
	}
	g := &Group{Source: NewSource(most, memory), ID: id, dial: dial, more: make(chan struct{}, 1)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.Source.wake = g.look
	return g, nil
}

// look has the lane written to; the first time it has it made.
func (g *Group) look() {
	g.once.Do(func() { g.over.Go(g.run) })
	select {
	case g.more <- struct{}{}:
	default:
	}
}

// Close ends the lane, once no link is of the group any more.
func (g *Group) Close() {
	g.cancel()
	go func() {
		g.over.Wait()
		g.Source.close()
	}()
}

// run makes the lane, and makes it again when it breaks.
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

// use writes and reads until the lane ends, and reports whether it had begun.
func (g *Group) use(conn net.Conn) (began bool) {
	stop := context.AfterFunc(g.ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	ended := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		g.write(conn, ended)
		conn.Close()
	})
	_ = g.read(bufio.NewReaderSize(conn, readBuffer)) // whatever it is, the lane is made again
	close(ended)
	conn.Close()
	writing.Wait()
	g.mu.Lock()
	began = g.attached
	g.mu.Unlock()
	g.detach()
	return began
}

// write writes the queue until the lane ends.
func (g *Group) write(conn net.Conn, ended <-chan struct{}) {
	var w laneWriter
	for {
		all := g.take()
		if len(all) == 0 {
			select {
			case <-g.more:
				continue
			case <-ended:
				return
			}
		}
		began := g.now()
		if w.write(conn, all) != nil {
			return
		}
		g.wrote(all, g.now().Sub(began))
	}
}

// laneWriter has room for writing frames.
type laneWriter struct{ heads []byte }

// write writes frames, small ones together.
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
