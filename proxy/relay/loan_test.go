package relay

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// Messages that have taken all of the bound by their first piece, and then need more, all get it:
// none waits while another waits for what it holds.
func TestLoansThatHoldSomeAllGetMore(t *testing.T) {
	m := NewMemory(1 << 30)
	m.pool = newPool(768<<10, 256<<10, 512<<10)
	var holding, done sync.WaitGroup
	holding.Add(6)
	for i := range 6 {
		l := m.Lend([]string{"a", "b", "c"}[i%3])
		done.Go(func() {
			defer l.Close()
			l.Begin(0)
			_, err := l.Borrow(128 << 10)
			holding.Done()
			holding.Wait()
			for range 2 {
				if err == nil {
					_, err = l.Borrow(128 << 10)
				}
			}
			l.End()
			if err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	// All of it has come back.
	if !m.bound.TryAcquire(768<<10) || !m.last.TryAcquire(256<<10) || !m.turn.TryAcquire(1) || len(m.sources) > 0 {
		t.Error("memory was not given back")
	}
}

// A message that came in a buffer of its own waits for nothing that others have by their first piece.
func TestLargeMessageHoldsMemory(t *testing.T) {
	m := NewMemory(1 << 30)
	m.pool = newPool(128<<10, 128<<10, 64<<10)
	require.NoError(t, m.bound.Acquire(t.Context(), 128<<10))
	l := m.Lend("a")
	defer l.Close()
	l.Begin(baseBuffer + 1)
	l.Release() // by a codec inside another
	_, err := l.Borrow(128 << 10)
	l.End()
	require.NoError(t, err)
}

// A source that has its share waits alone, and its waits end with the connection.
func TestSourceWithItsShareWaitsAlone(t *testing.T) {
	m := NewMemory(8 << 28) // 2 GiB, in blocks of 256 MiB, which nothing touches
	greedy := m.Lend("greedy")
	defer greedy.Close()
	taken := 0
	for m.sources["greedy"].bound.TryAcquire(1 << topClass) {
		m.sources["greedy"].bound.Release(1 << topClass)
		l := m.Lend("greedy")
		defer l.Close()
		_, err := l.Borrow(1 << topClass)
		require.NoError(t, err)
		taken++
	}
	waits := make(chan error)
	go func() {
		_, err := greedy.Borrow(1 << topClass)
		waits <- err
	}()
	other := m.Lend("other")
	defer other.Close()
	_, err := other.Borrow(128 << 10)
	require.NoError(t, err)
	greedy.Abort()
	if err := <-waits; taken == 0 || !errors.Is(err, ErrNoMemory) || !errors.Is(err, context.Canceled) {
		t.Errorf("%d blocks were taken, and then: %v", taken, err)
	}
}

// Buffers that grow beyond the bound keep counting, and none waits for another.
func TestBuffersThatGrowKeepCounting(t *testing.T) {
	m := NewMemory(1 << 30)
	m.pool = newPool(2<<20, 4<<20, 1<<20)
	a, b := input{memory: m}, input{memory: m}
	for _, in := range []*input{&a, &b} {
		in.begin()
		in.w = len(in.buf)
		require.NoError(t, in.grow(t.Context(), 3<<20))
		in.w = len(in.buf)
	}
	if m.bound.TryAcquire(1) {
		t.Fatal("the buffers do not count")
	}
	require.NoError(t, a.grow(t.Context(), 3<<20))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.grow(ctx, 3<<20); !errors.Is(err, context.Canceled) || b.charged == nil {
		t.Errorf("a second buffer: %v, and it counts: %t", err, b.charged != nil)
	}
	a.release()
	require.NoError(t, b.grow(t.Context(), 3<<20))
	b.release()
	if !m.bound.TryAcquire(2<<20) || !m.input.TryAcquire(4<<20) {
		t.Error("memory was not given back")
	}
}
