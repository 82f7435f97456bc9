package values

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// moves are keys whose values left a server of this host for another one: a move
// begins with a pull of the proxies' own. Until such a key is back the workers get
// it from there, so that what they have is not what this server's proxy remembers
// of them.
type moves struct {
	users atomic.Int64 // links with copies
	count atomic.Uint64
	mu    sync.Mutex // guards last and keys
	last  []moved    // up to the count, the oldest first
	keys  int        // in them
}

// moved are keys that one process's answer had.
type moved struct {
	process string
	keys    []byte
}

// mostMoved bounds the keys in moves.
const mostMoved = 1 << 18

// note notes keys that leave a process.
func (m *moves) note(process string, keys pslite.Keys) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = append(m.last, moved{process, slices.Clone([]byte(keys))})
	m.keys += keys.Len()
	for m.keys > mostMoved || len(m.last) > mostMoved/64 {
		half := (len(m.last) + 1) / 2
		for _, one := range m.last[:half] {
			m.keys -= len(one.keys) / 8
		}
		m.last = slices.Delete(m.last, 0, half)
	}
	m.count.Add(1)
}

// since returns the moves noted of a process after the first n. all says that older
// ones are forgotten.
func (m *moves) since(count uint64, process string) (keys pslite.Keys, now uint64, all bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now = m.count.Load()
	if now-count > uint64(len(m.last)) {
		return nil, now, true
	}
	var some []byte
	for _, one := range m.last[len(m.last)-int(now-count):] {
		if one.process == process {
			some = append(some, one.keys...)
		}
	}
	return pslite.Keys(some), now, false
}

// hold notes an answer that is wanted whole. Where there is no memory for it, it
// passes without being shown again.
func (c *copies) hold(m *pslite.Message) {
	c.release(m, false)
	if len(c.tables) > 0 {
		c.held, c.heldStamp = append(c.held[:0], m.Keys()...), m.Meta.Timestamp
	}
}

// release is called with the next message that is shown: if that is not the one
// held, the worker has other values now than are remembered.
func (c *copies) release(m *pslite.Message, answers bool) {
	if len(c.held) == 0 {
		return
	}
	if !answers || m.Meta.Timestamp != c.heldStamp || !slices.Equal(c.held, m.Keys()) {
		c.drop(c.held)
	}
	c.held = c.held[:0]
}

// process names the process that sends.
func (s *Sender) process() string { return s.link.Origin + " " + s.node }

// noteMoves takes up what has moved, and notes what an answer says that it moves.
func (s *Sender) noteMoves(m *pslite.Message) {
	c := &s.codec.moves
	if isOwn(m.Meta.Timestamp) && c.users.Load() > 0 {
		c.note(s.process(), m.Keys())
	}
	if c.count.Load() == s.copies.moves {
		return
	}
	keys, now, all := c.since(s.copies.moves, s.process())
	s.copies.moves = now
	if all {
		s.copies.forget()
		s.codec.counts.why(ReasonMoved)
		return
	}
	s.codec.counts.reasons[ReasonMoved].Add(uint64(s.copies.drop(keys)))
}
