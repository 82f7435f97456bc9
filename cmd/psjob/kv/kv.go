// Package kv pushes and pulls keys and float values over a van, as PS-lite's KVWorker
// and KVServer do: a worker cuts a sorted key list by the servers' key ranges, sends
// each server its part and counts the answers; a server hands requests to a handler
// and answers them. Besides, both carry commands: a number and a text, PS-lite's
// SimpleApp.
//
// Values are floats in the machine's memory on either side and are not copied on the
// way out: a request's slices must stay as they are until it was answered.
//
// # Messages
//
// All parts of a request have the worker's timestamp, which its answers repeat; app
// and customer say whose they are. The data frames are keys (8 bytes each),
// values (4 bytes each) and, if keys have different numbers of values, lengths (4
// bytes each). Doubles are carried as two values of a key each; the frame's type says so. A push has values and its answer none; a pull has an empty values
// frame and its answer the values, with the keys of the request. A request may do
// both. Which server a key belongs to follows from the key alone, see
// pslite.KeyRange.
//
// # Stores
//
// A [Store] holds a server's parameters and applies pushes to them. It has no sockets
// and no clock, and one goroutine uses it.
//
// A rule that follows a gradient (Synchronous) first sums the pushes of one step in
// fixed point, so that the sum does not depend on the order in which pushes arrive.
// The sum is applied when the first request of a later step touches the key. One
// barrier between the pushes of a step and the pulls of the next makes training
// bulk-synchronous, and its result is equal to the last bit in every run: a proxy
// that changes anything shows.
package kv

import (
	"context"
	"fmt"
	"sync"
	"unsafe"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A Command is a SimpleApp request or its answer.
type Command struct {
	From int // node id
	Head int32
	Body []byte
}

// app is what worker and server have in common: one customer that sends and receives
// commands.
type app struct {
	van      *van.Van
	customer *van.Customer
	id       int
	custID   int // customer id; a server's is its app's

	mu      sync.Mutex          // guards answers
	answers map[int32][]Command // to own commands that are being waited for, by timestamp
}

// Wait blocks until all nodes that got a request have answered it. It fails when the
// van's patience is over.
func (a *app) Wait(ctx context.Context, ts int32) error { return a.customer.Wait(ctx, ts) }

// Command sends a command to all nodes of a group and returns their answers, in the
// order in which they came. It blocks until all have answered.
func (a *app) Command(ctx context.Context, head int32, body []byte, group int) ([]Command, error) {
	nodes := a.van.Members(group)
	ts, err := a.customer.NewRequest(nodes, nil)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	// Before anything is sent: an answer that finds no entry is dropped.
	a.answers[ts] = []Command{}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.answers, ts)
		a.mu.Unlock()
	}()
	// Each node gets a message of its own with the same timestamp, and answers it
	// once.
	for _, node := range nodes {
		m := van.NewMessage(node)
		a.address(m, ts, int32(a.custID), true)
		m.Meta.Head, m.Meta.Body, m.Meta.SimpleApp = head, body, true
		if err := a.van.Send(ctx, m); err != nil {
			return nil, err
		}
	}
	if err := a.Wait(ctx, ts); err != nil {
		return nil, fmt.Errorf("command %d: %w", head, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answers[ts], nil
}

// address fills in what a message of this app begins with.
func (a *app) address(m *van.Message, ts, customer int32, request bool) {
	m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp, m.Meta.Request = int32(a.id), customer, ts, request
}

// handleCommand answers a command, or keeps the answer to one of ours. Its error ends
// the van.
func (a *app) handleCommand(ctx context.Context, m *van.Message, on func(Command) ([]byte, error)) error {
	// The body is copied: the message's memory is reused after this.
	c := Command{From: m.Sender, Head: m.Meta.Head, Body: append([]byte(nil), m.Meta.Body...)}
	if !m.Meta.Request {
		a.mu.Lock()
		defer a.mu.Unlock()
		// The caller may have given up. Its late answers must not pile up.
		if _, waits := a.answers[m.Meta.Timestamp]; waits {
			a.answers[m.Meta.Timestamp] = append(a.answers[m.Meta.Timestamp], c)
		}
		return nil
	}
	var body []byte
	if on != nil {
		var err error
		if body, err = on(c); err != nil {
			return fmt.Errorf("command %d from node %d: %w", c.Head, c.From, err)
		}
	}
	back := van.NewMessage(m.Sender)
	a.address(back, m.Meta.Timestamp, m.Meta.CustomerID, false)
	back.Meta.Head, back.Meta.Body, back.Meta.SimpleApp = m.Meta.Head, body, true
	return a.van.Send(ctx, back)
}

// The casts below rest on two facts: psjob runs on little-endian machines, as PS-lite
// does, and package zmtp reads frames into memory aligned to 8 bytes. bytesOf returns
// a list's memory as a frame.

func bytesOf[T uint64 | float32 | int32](list []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))), len(list)*int(unsafe.Sizeof(one)))
}

// listOf is the reverse of bytesOf. It copies only if the memory is not aligned.
func listOf[T uint64 | float32 | int32](frame []byte) ([]T, error) {
	var one T
	size := int(unsafe.Sizeof(one))
	if len(frame)%size != 0 {
		return nil, fmt.Errorf("a frame of %d bytes does not hold values of %d bytes", len(frame), size)
	}
	data := unsafe.Pointer(unsafe.SliceData(frame))
	if uintptr(data)%unsafe.Alignof(one) != 0 {
		list := make([]T, len(frame)/size)
		copy(bytesOf(list), frame)
		return list, nil
	}
	return unsafe.Slice((*T)(data), len(frame)/size), nil
}

// parts is the content of a data message.
type parts struct {
	keys []uint64
	vals []float32
	lens []int32

	doubles bool // each two values are the halves of a double
}

// open reads the data frames of a message: none, or keys and values, or keys, values
// and lengths. Values may be FLOAT, DOUBLE, or CHAR as MXNet and BytePS send them. The slices
// are of the message's memory.
func open(m *van.Message) (p parts, err error) {
	if len(m.Data) == 0 {
		return p, nil
	}
	if len(m.Data) < 2 || len(m.Data) > 3 {
		return p, fmt.Errorf("%d data frames: want keys, values and perhaps lengths", len(m.Data))
	}
	// The customer has made sure that there is a type for each frame.
	types := m.Meta.DataTypes
	p.doubles = types[1] == pslite.Double
	if types[0] != pslite.Uint64 || (types[1] != pslite.Float && types[1] != pslite.Char && !p.doubles) || (len(types) > 2 && types[2] != pslite.Int32) {
		return p, fmt.Errorf("data types %v: psjob takes UINT64 keys, FLOAT or DOUBLE values and INT32 lengths", types)
	}
	if p.keys, err = listOf[uint64](m.Data[0]); err != nil {
		return p, fmt.Errorf("keys: %w", err)
	}
	if p.vals, err = listOf[float32](m.Data[1]); err != nil {
		return p, fmt.Errorf("values: %w", err)
	}
	if len(m.Data) == 3 {
		if p.lens, err = listOf[int32](m.Data[2]); err != nil {
			return p, fmt.Errorf("lengths: %w", err)
		}
	}
	return p, nil
}

// close puts parts into a message. They must stay as they are until the message was
// written.
func (p parts) close(m *van.Message) {
	m.AddData(pslite.Uint64, bytesOf(p.keys))
	kind := pslite.Float
	if p.doubles {
		kind = pslite.Double
	}
	m.AddData(kind, bytesOf(p.vals))
	if p.lens != nil {
		m.AddData(pslite.Int32, bytesOf(p.lens))
	}
}
