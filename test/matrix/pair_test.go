package matrix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/matrix/pattern"
)

// patience is how long a pair may take: far longer than it does, also on a busy machine.
const patience = 8 * time.Minute

// outlasts reports whether the pair has gone on for as long as it shall: over some turns of what happens around it, before
// and after each of which its keys moved, or until which it was known that they never do.
func (x *pair) outlasts() bool {
	if x.measure.around == nil {
		return true
	}
	x.fleet.mu.Lock()
	defer x.fleet.mu.Unlock()
	x.ripe = x.settled || x.moved >= x.since+some
	return x.ripe && x.turns >= turns()
}

// pair is a pattern under a measure, on its way.
type pair struct {
	*fleet
	*pattern.Pattern
	measure *setting
	job     string // its name
	rng     *rand.Rand
	cell    string
	why     string // in words, where the measure is off
	ordered bool
	counted map[string]uint64 // keys moved, by proxy (each new one counts from 0)

	// The fleet's mutex guards these. moved are the keys that have moved.
	moved, since uint64 // all in all, and when the last turn was over
	turns        int    // of what happens around it, that it has seen
	settled      bool   // it is known why no key moves
	ripe         bool   // for the next turn
}

// line returns how the measure holds for the job, on all hosts.
func (x *pair) line(states []proxy.State) *measure.Line {
	var all [][]measure.Line
	for _, s := range states {
		all = append(all, s.Measures)
	}
	if len(states) < len(x.proxies) {
		return nil
	}
	for _, l := range measure.Sum(all...) {
		if l.Job == x.job && l.Measure == x.measure.line {
			return &l
		}
	}
	return nil
}

// run runs the pair, and returns what comes into the table.
func (x *pair) run(ctx context.Context, group string, port int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	goesOn, end := hoststest.WhileTraining(x.t)
	out := x.t.TempDir()
	node := hosts.Program{x.fleet.job, "--pattern", x.Name, "--while", goesOn, "--out", out, "--pause", "30ms", "--exact=" + strconv.FormatBool(!x.measure.lossy),
		"--again", strconv.Itoa(max(1, x.measure.again))}
	job := hosts.Job{Hosts: x.on, Port: port, Group: group, Scheduler: node, Servers: hosts.Repeat(x.Servers/x.ServersEach, node), Workers: hosts.Repeat(x.Workers/x.WorkersEach, node),
		Env: append([]string{"DMLC_NUM_SERVER=" + strconv.Itoa(x.Servers), "DMLC_NUM_WORKER=" + strconv.Itoa(x.Workers)}, x.Env...)}
	scheduler := x.on[0]
	if x.Apart {
		job.Apart, scheduler = x.net.Host(2), x.net.Host(2)
	}
	x.fleet.t.Helper()
	x.job = netip.AddrPortFrom(scheduler.IPv4, uint16(port)).String()
	r, err := job.Start(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	another := x.replaceWorker(ctx, r, group)
	go func() { done <- errors.Join(r.Wait(), <-another) }()
	x.join(true)
	defer x.join(false)
	for effective := false; ; {
		var states []proxy.State
		last := *x.states.Load()
		select {
		case err := <-done:
			switch {
			case ctx.Err() != nil:
				return fmt.Errorf("not at its end after %v, effective: %v: %v\n%s", patience, effective, err, x.describe(last))
			case err != nil:
				return fmt.Errorf("%w\n%s", err, x.describe(last))
			case !effective:
				return fmt.Errorf("it ended before the measure had an effect\n%s", x.describe(last))
			}
			return x.compare(out)
		case <-time.After(100 * time.Millisecond):
			states = *x.states.Load()
		}
		if ctx.Err() != nil {
			continue
		}
		if effective {
			// Pushes may show only now that some, or none, of them suit it: what is said last counts.
			if l := x.line(states); l != nil && l.Connections > 0 && !x.measure.moves && x.measure.line != measure.Carry {
				x.cell = ""
				x.measure.effective(x, states)
			}
			continue
		}
		if x.Apart && x.measure.meshOnly() && refusedDirect(states) && x.line(states) == nil {
			x.cell, x.why = "refused: no_peer", "it cannot start: --mesh-only, which --act and --placement imply"
			cancel()
			<-done
			return nil
		}
		if effective = x.measure.effective(x, states); effective {
			x.join(false) // what happens around others no longer waits for it
			end()
		}
	}
}

// replaceWorker starts another worker, on the other host, once one has left; the channel has how it ended.
func (x *pair) replaceWorker(ctx context.Context, r *hosts.Running, group string) <-chan error {
	end := make(chan error, 1)
	go func() {
		for at := 0; x.Left > 0; at = (at + 1) % len(r.Workers) {
			w := r.Workers[at]
			select {
			case <-w.Process.Done():
			case <-time.After(20 * time.Millisecond):
				continue
			case <-ctx.Done():
				end <- nil
				return
			}
			h := x.on[(w.Index+1)%len(x.on)]
			cmd := exec.CommandContext(ctx, w.Cmd.Path, w.Cmd.Args[1:]...)
			cmd.Env = append(slices.Clone(w.Cmd.Env), "DMLC_NODE_HOST="+h.IPv4.String())
			var log hosts.Log
			cmd.Stderr = &log
			p, err := h.StartIn(group, cmd)
			if err == nil {
				err = p.Wait(ctx)
			}
			if err != nil {
				err = fmt.Errorf("the worker that takes another's place: %w\n%s", err, log.Bytes())
			}
			end <- err
			return
		}
		end <- nil
	}()
	return end
}

// join has what happens around pairs wait for this one, or no longer.
func (x *pair) join(is bool) {
	x.fleet.mu.Lock()
	defer x.fleet.mu.Unlock()
	if delete(x.running, x); is {
		x.running[x] = true
	}
}

// refusedDirect reports whether both proxies have refused connections past the mesh.
func refusedDirect(states []proxy.State) bool {
	for _, s := range states {
		if s.Errors["no_peer"] == 0 {
			return false
		}
	}
	return len(states) > 1
}

// describe returns what is known of a job, for people.
func (x *pair) describe(states []proxy.State) string {
	var b strings.Builder
	if l := x.line(states); l != nil {
		fmt.Fprintf(&b, "%s: %s %v\n", l.Measure, l, l.Not)
	}
	for _, s := range states {
		for _, j := range s.Jobs {
			if j.Job == x.job {
				fmt.Fprintf(&b, "%+v\n", j)
			}
		}
	}
	x.planner.Do(func(s *plans.Service) {
		d, err := s.Describe(context.Background(), &api.DescribeRequest{Job: x.job})
		fmt.Fprintf(&b, "planner: %v %v\n", d, err)
	})
	fmt.Fprintf(&b, "keys moved %d, since the last turn %d, turns %d, settled %v", x.moved, x.moved-x.since, x.turns, x.settled)
	return b.String()
}

// compare compares what workers ended with.
func (x *pair) compare(dir string) error {
	workers, err := x.Read(dir)
	if err != nil {
		return err
	}
	var rounds []int
	for _, w := range workers {
		rounds = append(rounds, w.Rounds)
	}
	want, err := x.Expect(rounds)
	if err != nil {
		return err
	}
	for rank, w := range workers {
		for i := range x.Keys {
			if !x.Uses(rank, i) || bytes.Equal(w.Values[i], want[i]) {
				continue
			}
			k := &x.Keys[i]
			got, want := k.Kind.Numbers(w.Values[i]), k.Kind.Numbers(want[i])
			if x.measure.rounds != nil && (k.Kind == pattern.Float32 || k.Kind == pattern.Float64) && x.within(got, want, rounds) {
				continue
			}
			at := 0
			for math.Float64bits(got[at]) == math.Float64bits(want[at]) {
				at++
			}
			return fmt.Errorf("WRONG VALUE: after %v rounds worker %d has for key %d (number %d of the pattern), from value %d on, %v, want %v", rounds, rank, k.Key, i, at, got[at:min(at+4, len(got))], want[at:min(at+4, len(got))])
		}
	}
	return nil
}

// within reports whether numbers are as a measure that rounds may leave them.
func (x *pair) within(got, want []float64, rounds []int) bool {
	if x.Value != nil || x.Handler != pattern.Add { // of what is no sum of positive numbers nothing can be said
		return true
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= x.measure.rounds(want[i], slices.Max(rounds)*len(rounds))) {
			return false
		}
	}
	return true
}
