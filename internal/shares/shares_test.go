package shares

import (
	"context"
	"errors"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// A holder that has its share waits alone, until a part of it comes back or it gives up; who holds
// nothing takes no memory.
func TestHolderWithItsShareWaitsAlone(t *testing.T) {
	o := New[string](2)
	var backs []func()
	for _, holder := range []string{"greedy", "greedy", "other"} {
		back, err := o.Take(t.Context(), holder)
		require.NoError(t, err)
		backs = append(backs, back)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := o.Take(over, "greedy"); !errors.Is(err, context.Canceled) {
		t.Errorf("a third part: %v", err)
	}
	backs[0]()
	back, err := o.Take(t.Context(), "greedy")
	require.NoError(t, err)
	for _, back := range append(backs[1:], back) {
		back()
	}
	if len(o.held) > 0 {
		t.Errorf("%d shares are remembered", len(o.held))
	}
}
