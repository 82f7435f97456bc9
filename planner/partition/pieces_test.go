package partition

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
)

func TestEveryItemOnceAndInOrder(t *testing.T) {
	for _, n := range []int{0, 1, size - 1, size, size + 1, 3*size + 7} {
		next := 0
		err := EachPiece(t.Context(), n, func(from, to int) {
			if from != next || to <= from || to-from > size {
				t.Fatalf("piece %d to %d after %d", from, to, next)
			}
			next = to
		})
		if err != nil || next != n {
			t.Errorf("%d of %d items done, error %v", next, n, err)
		}
	}
}

func TestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	err := EachPiece(ctx, 10*size, func(int, int) {
		if calls++; calls == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || calls != 3 {
		t.Errorf("%d pieces after the context ended in the third, error %v", calls-3, err)
	}
}

func TestShareGivesEveryItemToOnePartInOrder(t *testing.T) {
	for _, n := range []int{0, 1, 5, size + 1, 9*size + 7} {
		var mu sync.Mutex
		next := map[int]int{}
		seen := make([]bool, n)
		if err := ShareLoop(t.Context(), n, func(part, from, to int) {
			mu.Lock()
			defer mu.Unlock()
			if before, ok := next[part]; ok && before != from {
				t.Errorf("part %d goes on at %d, want %d", part, from, before)
			}
			next[part] = to
			for i := from; i < to; i++ {
				if seen[i] {
					t.Errorf("item %d comes twice", i)
				}
				seen[i] = true
			}
		}); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(seen, false) || len(next) > LoopParts() {
			t.Errorf("of %d items some are left out, or there are %d parts, more than %d", n, len(next), LoopParts())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ShareLoop(ctx, size, func(int, int, int) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v after the context ended", err)
	}
}
