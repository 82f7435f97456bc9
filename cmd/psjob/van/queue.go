package van

import (
	"context"
	"sync"
)

// A queue hands messages from the readers of connections to one consumer. It holds a
// bounded number; a reader that finds it full waits, and with it, by TCP's flow
// control, the peer that sends. Higher priority goes first, as in PS-lite, equal
// priority in order of arrival.
type queue struct {
	mu    sync.Mutex // guards items and head
	items []*Message // those from head on are in the queue; not a ring, as they are few or drained at once
	head  int
	room  chan struct{} // one token per free place
	some  chan struct{} // signalled when an item was added
}

func newQueue(size int) *queue {
	q := &queue{room: make(chan struct{}, size), some: make(chan struct{}, 1)}
	for range size {
		q.room <- struct{}{}
	}
	return q
}

// enqueue adds m, waiting for room until ctx ends. With messages of several
// priorities a later one may overtake earlier ones that were not taken yet.
func (q *queue) enqueue(ctx context.Context, m *Message) error {
	select {
	case <-q.room:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	q.mu.Lock()
	q.items = append(q.items, m)
	// Insertion from the end: hardly any message has a priority, and then nothing
	// moves.
	for i := len(q.items) - 1; i > q.head && q.items[i-1].Meta.Priority < m.Meta.Priority; i-- {
		q.items[i-1], q.items[i] = q.items[i], q.items[i-1]
	}
	q.mu.Unlock()
	select {
	case q.some <- struct{}{}:
	default:
	}
	return nil
}

// get removes the next message, waiting for one until ctx ends.
func (q *queue) get(ctx context.Context) (*Message, error) {
	for {
		if m := q.pop(); m != nil {
			q.room <- struct{}{}
			return m, nil
		}
		select {
		case <-q.some:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// pop removes the next message; nil if there is none. It moves the rest down once the
// free part in front is the larger one.
func (q *queue) pop() *Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.items) {
		return nil
	}
	m := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
		// Moved down only when that halves the list, so that each item is moved a bounded
		// number of times.
	} else if q.head > 1024 && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return m
}
