package pieces

import (
	"context"
	"errors"
	"testing"
)

func TestEveryItemOnceAndInOrder(t *testing.T) {
	for _, n := range []int{0, 1, size - 1, size, size + 1, 3*size + 7} {
		next := 0
		err := Do(t.Context(), n, func(from, to int) {
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
	err := Do(ctx, 10*size, func(int, int) {
		if calls++; calls == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || calls != 3 {
		t.Errorf("%d pieces after the context ended in the third, error %v", calls-3, err)
	}
}
