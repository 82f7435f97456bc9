package retry

import (
	"context"
	"testing"
	"time"
)

// Pauses grow to the longest one and no further, and differ.
func TestNext(t *testing.T) {
	p := &Pause{First: time.Second, Most: 5 * time.Second}
	spans := []time.Duration{1, 2, 4, 5, 5, 5}
	different := map[time.Duration]bool{}
	for round := range 3 {
		for i, seconds := range spans {
			span := seconds * time.Second
			got := p.Next()
			different[got] = true
			if got < span/2 || got > span {
				t.Errorf("round %d, pause %d is %v: want %v to %v", round, i, got, span/2, span)
			}
		}
		p.Reset()
	}
	if len(different) < len(spans) {
		t.Errorf("only %d different pauses: hosts would come back together", len(different))
	}
}

func TestWaitEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&Pause{First: time.Hour}).Wait(ctx); err == nil {
		t.Error("a pause outlasts its context")
	}
}
