package agent

import (
	"strings"
	"testing"
	"time"
)

// An agent that loses what jobs send, or is late with reading it, says so, until it has
// kept up for as long as a worker may be silent.
func TestSight(t *testing.T) {
	at := func(seconds float64) time.Time { return now.Add(time.Duration(seconds * float64(time.Second))) }
	var s sight
	for _, step := range []struct {
		second float64
		lost   uint64
		unread time.Time
		want   string // part of it; empty: all is seen
	}{
		{0, 0, time.Time{}, ""},
		{1, 0, at(0.95), ""},
		{4, 0, at(1), "this agent lags 3 s behind"},
		{5, 7, at(1), "does not keep up"},
		{6, 7, at(5.9), "does not keep up"},
		{9.5, 7, time.Time{}, "does not keep up"},
		{10, 7, time.Time{}, ""},
		{11, 9, time.Time{}, "does not keep up"},
		{16, 9, time.Time{}, ""},
	} {
		if got := s.explainBlindness(at(step.second), step.lost, step.unread); !strings.Contains(got, step.want) || (got == "") != (step.want == "") {
			t.Errorf("after %v s: %q, want %q", step.second, got, step.want)
		}
	}
}
