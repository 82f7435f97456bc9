package values

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// moves are keys whose values left a server of this host for another one: a move
// begins with a pull of the proxies' own. While such a key is away the workers pull
// it from the other server, so this server's proxy no longer knows their values: its
// copies of them are stale. Every link from that server reads the list at its own
// pace, from the count up to which it has applied it.
type moves struct {
	users atomic.Int64  // links with copies; without any nothing is recorded
	count atomic.Uint64 // moves so far
	mu    sync.Mutex    // guards last and keys
	last  []moved       // the last of them, the oldest first; ends at count
	keys  int           // of all in last
}

// moved is the keys of one answer that a process gave to a move.
type moved struct {
	process string
	keys    []byte
}

// mostMoved bounds the keys in moves. Links that fall behind further drop all copies.
const mostMoved = 1 << 18

// note records keys that leave a process.
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

// since returns the keys that left a process after the first count moves. all says that
// older moves are forgotten, so that any key may have moved.
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

// hold records an answer that is wanted whole. If there is no memory to hold it, it
// passes without being shown again, and the worker has values that are not in the
// copies.
func (c *copies) hold(m *pslite.Message) {
	c.release(m, false)
	if len(c.tables) > 0 {
		c.held, c.heldStamp = append(c.held[:0], m.Keys()...), m.Meta.Timestamp
	}
}

// release is called with the next message that is shown. If that is not the one held,
// its keys leave the copies.
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

// noteMoves applies moves that this link has not seen, and records the keys of an
// answer to a move.
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
