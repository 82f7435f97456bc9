package codecs

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

const (
	patience = 10 * time.Minute
	// half is the middle half of all keys, half of each server's.
	half = "4611686018427387904-13835058055282163711"
)

// A threshold comes by the planner in the middle of a job for all keys, stays
// for half of them, and goes. The servers end with the very sums that they have
// without sidecars.
func TestPlannerTurnsCodecsOnAndOff(t *testing.T) {
	count := []string{"--model", "count", "--count-late", "--async", "--steps", "3600", "--count-keys", "600", "--count-batch", "150", "--value-length", "8"}
	want := Run{Hosts: 2, Direct: true, Job: count}.Do(t).digests()
	planned := Run{Hosts: 2, Planned: true, Job: append(slices.Clone(count), "--count-compute", "3ms")}
	planned.Started = func(sidecars []*sidecar.Sidecar, _ *hosts.Running) {
		(&planning{t: t, program: build(t, "cmd/psidecar"), sidecars: sidecars, job: sidecars[0].Address(9091)}).onAndOff()
	}
	if got := planned.Do(t).digests(); !slices.Equal(got, want) {
		t.Errorf("the servers' digests are %v, want %v", got, want)
	}
}

// planning changes the rules of a job that runs beside sidecars of which the
// first has the planner.
type planning struct {
	t        *testing.T
	program  string
	sidecars []*sidecar.Sidecar
	job      string
}

func (p *planning) onAndOff() {
	p.t.Helper()
	p.awaitJob()
	if got := p.during(100); got.Layers > 0 {
		p.t.Fatalf("%+v before there is a rule", got)
	}
	if out := p.plan("set", "--threshold", "0.98"); !strings.Contains(out, "nothing was changed") || !strings.Contains(out, `"threshold":0.98`) {
		p.t.Errorf("without --act it says %q", out)
	}
	if got := p.during(100); got.Layers > 0 {
		p.t.Errorf("and yet the rule holds: %+v", got)
	}
	if out := p.plan("set", "--threshold", "0.98", "--act"); out != "set; accepted by 2 proxies\n" {
		p.t.Errorf("with --act it says %q", out)
	}
	small := func(f coded) bool { return f.Hosts == 2 && f.Encoded*20 <= f.Bytes }
	all := p.await("a twentieth of the bytes, from both hosts", small)
	p.tries()

	// A rule for half of the keys: the others go by the one before.
	p.plan("set", "--keys", half, "--off", "--act")
	part := p.await("half of the values as they are, once what waited is sent", func(f coded) bool {
		share := f.each() / all.each()
		return small(f) && share > 0.4 && share < 0.6
	})
	p.plan("clear", "--keys", half, "--act")
	p.await("all values again", func(f coded) bool { return small(f) && f.each() > 0.9*all.each() })
	if out := p.plan("drain", "--steps", "20", "--act", "--within", "3m"); !strings.Contains(out, "drained: nothing is held back on 2 hosts") {
		p.t.Errorf("psidecar plan codecs drain says %q", out)
	}
	for i, s := range p.sidecars {
		if state := require.Value(s.Connections(p.t.Context()))(p.t); state.Values.Waiting > 0 {
			p.t.Errorf("after a drain proxy %d holds back %d values", i, state.Values.Waiting)
		}
	}
	p.plan("set", "--off", "--act")
	p.await("all values as they are", func(f coded) bool { return f.Layers == 0 })
	p.plan("clear", "--act")
	if out := p.plan("show"); !strings.Contains(out, "no rules") || strings.Count(out, "has accepted them") != 2 {
		p.t.Errorf("at last psidecar plan codecs show says %q", out)
	}
	p.t.Logf("under a threshold of 98%%: %+v, for half of the keys: %+v", all, part)
}

// awaitJob waits until the planner knows the job.
func (p *planning) awaitJob() {
	p.t.Helper()
	require.Await(p.t, "the planner knows job "+p.job, func() error {
		var known page.Jobs
		err := p.sidecars[0].Get(p.t.Context(), sidecar.PlannerPage, "/api/v1/jobs", &known)
		if err != nil || !slices.ContainsFunc(known.Jobs, func(j page.Job) bool { return j.Name == p.job }) {
			return fmt.Errorf("it knows %+v, %v", known.Jobs, err)
		}
		return nil
	})
}

// plan runs psidecar plan codecs on the planner's host and returns what it
// printed.
func (p *planning) plan(args ...string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.program, append(append([]string{"plan", "codecs"}, args...), "--job", p.job, "--planner", p.sidecars[0].Address(sidecar.Planner))...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := p.sidecars[0].Host.Run(ctx, cmd); err != nil {
		p.t.Fatalf("psidecar plan codecs %v: %v\n%s", args, err, out.String())
	}
	return out.String()
}

// coded is what went under thresholds among so many messages by link, and from
// how many hosts.
type coded struct{ Messages, Layers, Bytes, Encoded, Hosts uint64 }

// each is how many bytes of values a message has under thresholds, in the mean.
func (c coded) each() float64 { return float64(c.Bytes) / float64(c.Messages) }

// sums returns what each host has sent since the start.
func (p *planning) sums() []coded {
	p.t.Helper()
	sums := make([]coded, len(p.sidecars))
	for i, s := range p.sidecars {
		state := require.Value(s.Connections(p.t.Context()))(p.t)
		for _, connection := range state.Connections {
			sums[i].Messages += connection.ToFar.Messages
		}
		for _, form := range state.Values.Forms {
			if form.Form == "threshold" {
				sums[i].Layers, sums[i].Bytes, sums[i].Encoded = form.Layers, form.Bytes, form.Encoded
			}
		}
	}
	return sums
}

// during waits for so many messages and returns what went in the meantime.
func (p *planning) during(messages uint64) (c coded) {
	p.t.Helper()
	before := p.sums()
	require.Await(p.t, fmt.Sprintf("%d messages: has the job ended?", messages), func() error {
		c = coded{}
		for i, now := range p.sums() {
			c.Messages += now.Messages - before[i].Messages
			c.Layers += now.Layers - before[i].Layers
			c.Bytes += now.Bytes - before[i].Bytes
			c.Encoded += now.Encoded - before[i].Encoded
			if now.Layers > before[i].Layers {
				c.Hosts++
			}
		}
		if c.Messages < messages {
			return fmt.Errorf("%d so far", c.Messages)
		}
		return nil
	})
	return c
}

// await waits until a few hundred messages are as wanted, and returns them.
func (p *planning) await(what string, ok func(coded) bool) (c coded) {
	p.t.Helper()
	for range 20 {
		if c = p.during(300); ok(c) {
			return c
		}
	}
	p.t.Fatalf("%s: in the end it is %+v", what, c)
	return c
}

// tries has codecs tried, and looks at what the planner's page is told.
func (p *planning) tries() {
	p.t.Helper()
	planner := p.sidecars[0]
	if out := p.plan("try", "--seconds", "1"); !strings.Contains(out, "threshold 0.99") || !strings.Contains(out, "suggested: ") {
		p.t.Errorf("psidecar plan codecs try says %q", out)
	}
	var c page.Codecs
	require.Await(p.t, "advice of both hosts", func() error {
		err := planner.Get(p.t.Context(), sidecar.PlannerPage, "/api/v1/codecs?job="+p.job, &c)
		if err == nil && (c.Advice == nil || c.Advice.Hosts < 2) {
			err = fmt.Errorf("%+v, %+v", c, c.Advice)
		}
		return err
	})
	for _, row := range c.Advice.Codecs {
		if row.Codec == "threshold 0.99" && !(row.Saved > 0.2 && row.Waits > 0) || row.Codec == "compact" && row.Waits != 0 {
			p.t.Errorf("%+v", row)
		}
	}
	if len(c.Hosts) != 2 || !c.Hosts[0].Current || !c.Hosts[1].Reported || c.Advice.PushBytes == 0 {
		p.t.Errorf("%+v", c)
	}
}
