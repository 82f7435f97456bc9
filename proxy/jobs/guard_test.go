package jobs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/route"
)

// Connections may not go past the proxy while keys of the job are, or may be,
// displaced, and may when all is at home or the job is over; what could not be set
// is tried again.
func TestGuard(t *testing.T) {
	var told []bool
	var fails error
	x := oneJob(t, Options{FailClosed: func(_ context.Context, job string, on bool) error {
		if job != "10.0.0.1:9000" {
			t.Errorf("told of job %s", job)
		}
		told = append(told, on)
		return fails
	}})
	x.jobs.run, x.jobs.ctx = new(errgroup.Group), t.Context()
	key := []plan.Keys{plan.One(8)}
	batch := route.Batch{Mover: "10.0.0.2", Number: 1}
	displace := func(owner int32) func() {
		return func() { x.router.Table().Set([]plan.Range{{Keys: key[0], Owner: owner}}) }
	}
	for _, c := range []struct {
		name string
		do   func()
		want []bool
	}{
		{"all at home", func() {}, nil},
		{"another host moves a key, and it cannot be set", func() { x.router.Hold(batch, key); fails = errors.New("no agent") }, []bool{true}},
		{"it can be set", func() { fails = nil }, []bool{true}},
		{"it is set", func() {}, nil},
		{"the key has moved", func() { x.router.Release(batch, 1) }, nil},
		{"the job is over here", func() { x.inUse = time.Now().Add(-unusedAfter) }, []bool{false}},
		{"it is not", func() { x.inUse = time.Now().Add(time.Hour) }, []bool{true}},
		{"the key comes home", displace(0), []bool{false}},
		{"another is displaced from the start", displace(1), []bool{true}},
	} {
		c.do()
		told = nil
		x.guard()
		if err := x.jobs.run.Wait(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(told, c.want) {
			t.Errorf("%s: told to fail closed: %v, want %v", c.name, told, c.want)
		}
	}
}
