package jobs

import (
	"context"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// A proxy that takes a job over waits for Record calls of the one before it, unless that has ended
// in order and all its calls were answered.
func TestWhoWaitsForRecordCalls(t *testing.T) {
	end := func(x *job) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		require.NoError(t, x.jobs.Run(ctx))
	}
	for _, c := range []struct {
		name     string
		change   func(x *job)
		answered bool
	}{
		{"all were answered", func(*job) {}, true},
		{"one was not, just now", func(x *job) { x.unanswered = time.Now() }, false},
		{"one was not, but must have arrived since", func(x *job) { x.unanswered = time.Now().Add(-settled) }, true},
		{"it does not know where keys are yet", func(x *job) { x.site.Join() }, false},
		{"no key was displaced", func(x *job) { x.displaced = false }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := oneJob(t, Options{Planner: "127.0.0.1:1"})
			x.displaced = true
			c.change(x)
			require.NoError(t, x.save())
			end(x)
			next := remembered(t, x, x.jobs.opts)
			if next.answered != c.answered {
				t.Errorf("no call is in flight: %v, want %v", next.answered, c.answered)
			}
			// The next one is killed.
			if remembered(t, x, x.jobs.opts).answered {
				t.Error("what a proxy has left is found after the next one was killed")
			}
		})
	}
	// One that ends before it has joined has not waited itself.
	x := oneJob(t, Options{Planner: "127.0.0.1:1"})
	x.displaced = true
	require.NoError(t, x.save())
	x.close()
	end(remembered(t, x, x.jobs.opts))
	if remembered(t, x, x.jobs.opts).answered {
		t.Error("a proxy that ended while it waited says that no call is in flight")
	}
}
