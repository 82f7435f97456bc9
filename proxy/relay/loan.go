package relay

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// A pool bounds what many holders take in pieces, of which they know the sizes one after the other.
// Nobody waits for more while others could wait for what it holds:
//
//   - Whoever holds nothing waits for the first piece, in bound.
//   - A message that is still being read waits for all of its buffer, in input. After that it needs
//     no more.
//   - A message that is being decoded takes more of bound while there is some. Otherwise it waits for
//     its turn, which it keeps until it is decoded, and takes the rest from last. That is given
//     back by messages that are decoded: those wait for their processes alone.
//
// Each of these waits only for what comes after it in this list.
type pool struct {
	bound, input, turn, last *semaphore.Weighted
	state                    *semaphore.Weighted // of bound: the part for what is kept from message to message
	part                     int64               // the size of input and of last, in bytes
	most                     int64               // that of bound
}

func newPool(bound, part, state int64) *pool {
	return &pool{bound: semaphore.NewWeighted(bound), most: bound, state: semaphore.NewWeighted(state), part: part,
		input: semaphore.NewWeighted(part), turn: semaphore.NewWeighted(1), last: semaphore.NewWeighted(part)}
}

// leftForOthers is the divisor that gives the part of all that one source cannot take, unless the
// largest message needs it.
const leftForOthers = 8

// share is that of one source, such as a job.
type share struct {
	*pool
	loans int // guarded by Memory.mu
}

// A Loan is what one link's decoder takes of a Memory for the message in hand, within the share of
// the link's source. Except for Abort and what counts state it is for one goroutine. The zero Loan
// has no bound.
type Loan struct {
	memory *Memory // nil: without a bound
	name   string
	source *share
	closed sync.Once
	ctx    context.Context
	end    context.CancelFunc
	depth  int  // of calls of Begin
	held   bool // the message holds memory already
	turns  int  // of pools, that this message has
	lent   []lent
}

// lent is one piece, with what it is charged to; nil: like one of 64 KiB, to nothing.
type lent struct {
	b  *[]byte // as the pool of buffers has it
	by [2]*semaphore.Weighted
}

// Lend returns the Loan of a link. Links that name the same source have one share together. A nil
// Memory lends without a bound.
func (m *Memory) Lend(name string) *Loan {
	l := &Loan{memory: m, name: name}
	if m == nil {
		return l
	}
	l.ctx, l.end = context.WithCancel(context.Background())
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sources[name]
	if s == nil {
		most := max(m.most-m.most/leftForOthers, min(m.most, 1<<topClass))
		s = &share{pool: newPool(most, m.part, m.limit/stateShare/leftForOthers*(leftForOthers-1))}
		m.sources[name] = s
	}
	s.loans++
	l.source = s
	return l
}

// Begin begins to decode a message that holds size bytes already. Calls nest.
func (l *Loan) Begin(size int) {
	if l.depth++; l.depth == 1 {
		l.held = size > baseBuffer
	}
}

// End ends what Begin began. Nothing more is borrowed for the message.
func (l *Loan) End() {
	if l.depth--; l.depth > 0 {
		return
	}
	for ; l.turns > 0; l.turns-- {
		l.pools()[l.turns-1].turn.Release(1)
	}
}

// Borrow returns a buffer of at least n bytes, with arbitrary content, until Release. It waits for
// memory until Abort, but not for long; the error wraps [ErrNoMemory].
func (l *Loan) Borrow(n int) ([]byte, error) {
	class := classOf(max(n, 1))
	if l.memory == nil {
		return make([]byte, n), nil
	}
	if class > topClass || 1<<class > l.memory.most {
		return nil, fmt.Errorf("%w for %d bytes, of %d in all", ErrNoMemory, n, l.memory.most)
	}
	piece := lent{}
	if class > baseClass {
		if err := l.charge(&piece, 1<<class); err != nil {
			return nil, fmt.Errorf("%w for %d bytes: %w", ErrNoMemory, n, err)
		}
		l.held = true
	}
	piece.b = l.memory.get(class)
	l.lent = append(l.lent, piece)
	return *piece.b, nil
}

// charge takes n bytes for a piece.
func (l *Loan) charge(piece *lent, n int64) error {
	ctx, cancel := context.WithTimeout(l.ctx, memoryPatience)
	defer cancel()
	for i, p := range l.pools() {
		from, err := l.take(ctx, i, p, n)
		if err != nil {
			piece.release(n)
			return err
		}
		piece.by[i] = from
	}
	return nil
}

// release gives back what the piece was charged to.
func (p *lent) release(n int64) {
	for _, from := range p.by {
		if from != nil {
			from.Release(n)
		}
	}
}

// pools are what memory is taken from, in this order: the source's, and that of all.
func (l *Loan) pools() [2]*pool { return [2]*pool{l.source.pool, l.memory.pool} }

// take takes n bytes of pool i, and returns what they are charged to.
func (l *Loan) take(ctx context.Context, i int, p *pool, n int64) (*semaphore.Weighted, error) {
	switch {
	case !l.held:
		return p.bound, p.bound.Acquire(ctx, n)
	case p.bound.TryAcquire(n):
		return p.bound, nil
	}
	for ; l.turns <= i; l.turns++ {
		if err := l.pools()[l.turns].turn.Acquire(ctx, 1); err != nil {
			return nil, err
		}
	}
	if n > p.part {
		return p.bound, p.bound.Acquire(ctx, n)
	}
	return p.last, p.last.Acquire(ctx, n)
}

// Release gives all of the message's memory back.
func (l *Loan) Release() {
	for _, piece := range l.lent {
		piece.release(int64(len(*piece.b)))
		l.memory.put(piece.b)
	}
	clear(l.lent)
	l.lent = l.lent[:0]
}

// Abort ends a Borrow that waits, and those to come. It is for any goroutine.
func (l *Loan) Abort() {
	if l.end != nil {
		l.end()
	}
}

// Close gives the message's memory back. Only what was reserved can be given back afterwards.
func (l *Loan) Close() {
	l.Release()
	l.Abort()
	l.closed.Do(func() {
		if l.memory == nil {
			return
		}
		l.memory.mu.Lock()
		defer l.memory.mu.Unlock()
		if l.source.loans--; l.source.loans == 0 {
			delete(l.memory.sources, l.name)
		}
	})
}

// Reserve charges n bytes that the caller is about to allocate and keep for longer than a message.
// It waits like Borrow. It is for any goroutine, as TryReserve and Unreserve.
func (l *Loan) Reserve(n int) error {
	if l.memory == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(l.ctx, cmp.Or(l.memory.Patience, reserveWithin))
	defer cancel()
	all := []*semaphore.Weighted{l.source.state, l.memory.state, l.memory.bound}
	for i, from := range all {
		if err := from.Acquire(ctx, int64(n)); err != nil {
			for _, taken := range all[:i] {
				taken.Release(int64(n))
			}
			return fmt.Errorf("%w for %d bytes to remember: %w", ErrNoMemory, n, err)
		}
	}
	return nil
}

// reserveWithin is how long [Loan.Reserve] waits by default.
const reserveWithin = 10 * time.Second

// TryReserve is Reserve without waiting, for what the caller can do without.
func (l *Loan) TryReserve(n int) bool {
	if l.memory == nil {
		return true
	}
	if !l.source.state.TryAcquire(int64(n)) {
		return false
	}
	if !l.memory.TryReserve(n) {
		l.source.state.Release(int64(n))
		return false
	}
	return true
}

// Unreserve releases n bytes of what Reserve and TryReserve have charged, whichever calls did.
func (l *Loan) Unreserve(n int) {
	if l.memory != nil {
		l.memory.Unreserve(n)
		l.source.state.Release(int64(n))
	}
}
