package planner

import (
	"testing"

	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/page/history"
)

// The loop that keeps the last hour turns now and then: it is not late before its
// next turn, and some more. It was said to stand still where it turned as it should.
func TestHourIsNotLate(t *testing.T) {
	if hourWithin < history.Every+health.Within {
		t.Errorf("a loop that turns every %v is late after %v", history.Every, hourWithin)
	}
}
