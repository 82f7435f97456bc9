package relay

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// sieve is a stage that takes every third message of those with an even timestamp, from first on,
// and lets some wait once.
type sieve struct {
	first int32
	waits bool

	mu        sync.Mutex // guards the rest
	wake      func()
	receptive bool
	over      bool
	closed    int
	ready     string
	waited    map[int32]bool
	inspected map[int32]int
	queue     [][]byte
	unsent    int
	returned  int // messages that had not gone when a link ended
	taken     [][]byte
}

func newSieve(first int32) *sieve {
	return &sieve{first: first, waited: map[int32]bool{}, inspected: map[int32]int{}}
}

func (s *sieve) takes(timestamp int32) bool { return timestamp < 100000 && timestamp%6 == s.first }

func (s *sieve) Command(name string, data []byte) (bool, error) {
	if name == zmtp.CommandReady {
		if r, err := zmtp.ParseReady(data); err == nil {
			s.ready = string(r.Identity)
		}
	}
	return name != "SECRET", nil
}

func (s *sieve) WantsKeys(m *pslite.Meta) bool { return m.Request }

func (s *sieve) Inspect(m *pslite.Message, _ pslite.Dialect) (Taken, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := m.Meta.Timestamp
	if s.waits && at%4 == 0 && !s.waited[at] {
		s.waited[at] = true
		go s.look()
		return Waits, nil
	}
	s.inspected[at]++
	if s.takes(at) {
		return Took, nil
	}
	return Passes, nil
}

func (s *sieve) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wake != nil {
		s.wake()
	}
}

func (s *sieve) Take(m *pslite.Message, d pslite.Dialect) error {
	var b []byte
	frames := append([][]byte{m.Meta.Append(nil, d)}, m.Data...)
	for i, f := range frames {
		b = appendFrame(b, f, i < len(frames)-1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, b)
	return nil
}

func (s *sieve) Silent() {}

func (s *sieve) HasDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receptive && len(s.queue) > 0
}

func (s *sieve) Due() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.receptive || len(s.queue) == 0 {
		return nil
	}
	due := s.queue[:1+len(s.queue)/2]
	s.queue = s.queue[len(due):]
	return due
}

func (s *sieve) Sent(batch [][]byte, n int) {
	if n == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.queue = slices.Concat(batch, s.queue)
		s.returned += len(batch)
		return
	}
	for _, b := range batch {
		n -= len(b)
	}
	s.unsent -= n
}

func (s *sieve) End(_, between bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 0 && between && s.receptive {
		return false
	}
	s.over = true
	return true
}

func (s *sieve) Attach(wake func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake = wake
}

func (s *sieve) Receptive() {
	s.mu.Lock()
	s.receptive = true
	s.mu.Unlock()
	s.look()
}

func (s *sieve) Close() { s.closed++ }

// say queues a message, and returns false where none is taken any more.
func (s *sieve) say(b []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.queue = append(s.queue, b)
	if s.wake != nil {
		s.wake()
	}
	return true
}

// numbered returns messages with their numbers as timestamps: small, with large keys, with values
// that are streamed.
func numbered(seed uint64, n int) (all [][]byte) {
	rng := rand.New(rand.NewPCG(seed, 5))
	for i := range n {
		keys, values := rng.IntN(50), rng.IntN(5000)
		switch rng.IntN(8) {
		case 0:
			values = 300<<10 + rng.IntN(1<<20)
		case 1:
			keys = 20<<10 + rng.IntN(50<<10)
		}
		meta := pslite.Meta{Head: 1, Request: true, Push: true, Timestamp: int32(i), DataTypes: []pslite.DataType{pslite.Uint64, pslite.Char, pslite.Int32}}
		b := appendFrame(nil, meta.Append(nil, pslite.DMLC), true)
		b = appendFrame(b, bytes.Repeat([]byte{byte(i)}, 8*keys), true)
		lens := make([]byte, 4*keys)
		if keys > 0 {
			binary.LittleEndian.PutUint32(lens, uint32(values))
		} else {
			values = 0
		}
		b = appendFrame(b, bytes.Repeat([]byte{byte(i)}, values), true)
		all = append(all, appendFrame(b, lens, false))
	}
	return all
}

// own is a message of a stage's own.
func own(timestamp int32) []byte {
	meta := pslite.Meta{Timestamp: timestamp}
	return appendFrame(nil, meta.Append(nil, pslite.DMLC), false)
}

// apart returns b, frames after a greeting, without the messages of stages, and the timestamps of
// those, by stage.
func apart(t *testing.T, b []byte) (rest []byte, owns [2][]int32) {
	t.Helper()
	rest = slices.Clone(b[:64])
	inside := false
	for b = b[64:]; len(b) > 0; {
		h, n, err := zmtp.CutHeader(b)
		if err != nil || n == 0 || len(b) < n+int(h.Size) {
			t.Fatalf("%d bytes of no whole frame: %v", len(b), err)
		}
		frame := b[:n+int(h.Size)]
		b = b[len(frame):]
		var m pslite.Meta
		if !inside && !h.Command() && m.Decode(frame[n:], pslite.DMLC) == nil && m.Timestamp >= 100000 {
			owns[m.Timestamp/100000-1] = append(owns[m.Timestamp/100000-1], m.Timestamp)
			continue
		}
		inside = h.More()
		rest = append(rest, frame...)
	}
	return rest, owns
}
