package van

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// A Message is what travels between two nodes: meta, and up to three data frames
// (keys, values, lengths).
//
// A message that is sent refers to its sender's memory. A received message is in
// memory of the pool and is counted: whoever handles it may Retain it, and the last
// Release returns it.
type Message struct {
	Sender, Recver int
	Meta           pslite.Meta
	Data           [][]byte // of a received message: valid until Release

	// Written, if not nil, is called when the data of a message that is sent is not
	// needed any more: it was written, or copied. It may be called by any goroutine.
	Written func()

	incoming zmtp.Message
	pool     *sync.Pool   // to which a received message returns; nil for one that is sent
	users    atomic.Int32 // of a received message: Releases still to come
}

// NewMessage returns an empty message to a node, as PS-lite's constructor makes it:
// head, app, customer and timestamp are not set.
func NewMessage(to int) *Message {
	m := &Message{Recver: to}
	m.Meta.Reset()
	m.Meta.CustomerID = pslite.Empty
	return m
}

// AddData appends a data frame. The memory stays the caller's and must not change
// before the message is answered.
func (m *Message) AddData(t pslite.DataType, frame []byte) {
	m.Meta.DataTypes = append(m.Meta.DataTypes, t)
	m.Meta.DataSize += int32(len(frame))
	m.Data = append(m.Data, frame)
}

func (m *Message) command() pslite.Command { return m.Meta.Control.Cmd }

// frames returns the message as ZMTP frames: its meta, and the data where they are.
func (m *Message) frames(d pslite.Dialect) [][]byte {
	frames := make([][]byte, 0, 1+len(m.Data))
	frames = append(frames, m.Meta.Append(nil, d))
	return append(frames, m.Data...)
}

// decode takes apart the message that was read from a node. A meta in another dialect
// gets an error that names it: a job's nodes must all be of one generation, and a
// wrong --dialect is the likely cause.
func (m *Message) decode(from, to int, d pslite.Dialect) error {
	m.Sender, m.Recver = from, to
	frames := m.incoming.Frames
	if err := m.Meta.Decode(frames[0], d); err != nil {
		var other pslite.Meta
		if found, detectErr := pslite.Detect(frames[0], &other); detectErr == nil {
			return fmt.Errorf("it is in PS-lite's dialect %v, this node speaks %v: %w", found, d, err)
		}
		return fmt.Errorf("it is not PS-lite's: %w", err)
	}
	m.Data = append(m.Data[:0], frames[1:]...)
	// Handlers index the types by the frames.
	if len(m.Data) > 0 && len(m.Data) != len(m.Meta.DataTypes) {
		return fmt.Errorf("%d data frames, but the meta frame lists %d types", len(m.Data), len(m.Meta.DataTypes))
	}
	return nil
}

// Retain keeps a received message's data valid until one more Release.
func (m *Message) Retain() { m.users.Add(1) }

// Release returns a received message's memory once all who retained it have released
// it. Its data must not be used after that.
func (m *Message) Release() {
	if m.pool != nil && m.users.Add(-1) == 0 {
		m.pool.Put(m)
	}
}

// signature is the number by which the resender recognizes a message.
func (m *Message) signature(sender, recver int) uint64 {
	return pslite.Signature(&m.Meta, int32(sender), int32(recver))
}

// String describes the message for logs, without its data.
func (m *Message) String() string {
	meta := &m.Meta
	if meta.Control.Cmd != pslite.NoCommand {
		return fmt.Sprintf("%v timestamp=%d request=%v", meta.Control.Cmd, meta.Timestamp, meta.Request)
	}
	size := 0
	for _, d := range m.Data {
		size += len(d)
	}
	return fmt.Sprintf("app=%d customer=%d timestamp=%d request=%v push=%v pull=%v simple=%v head=%d frames=%d bytes=%d",
		meta.AppID, meta.CustomerID, meta.Timestamp, meta.Request, meta.Push, meta.Pull, meta.SimpleApp, meta.Head, len(m.Data), size)
}
