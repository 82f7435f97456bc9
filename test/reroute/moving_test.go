package reroute

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// fleet is psidecar up on every host; the first has the planner.
type fleet struct {
	t       *testing.T
	net     *hosts.Net
	program string
	all     []*sidecar.Sidecar
}

func start(t *testing.T, k int, planner ...string) *fleet {
	t.Helper()
	require.Root(t)
	require.BPF(t)
	f := &fleet{t: t, net: hoststest.New(t, hosts.Config{Hosts: k}), program: hoststest.BuildJob(t, "cmd/psidecar")}
	for i, h := range f.net.Hosts() {
		flags := []string{"--sample", "1", "--state-dir", t.TempDir(), "--act", "--handler", "add", "--codec", "none"}
		if i == 0 {
			flags = append(flags, "--planner-store", filepath.Join(t.TempDir(), "plans.db"), "--planner-decide-every", "1s")
			flags = append(flags, planner...)
		} else {
			flags = append(flags, "--planner", net.JoinHostPort(f.net.Host(0).IPv4.String(), strconv.Itoa(sidecar.Planner)))
		}
		f.all = append(f.all, sidecar.Start(t, h, f.program, "sidecar", flags...))
	}
	return f
}

// run runs a count with a server and a worker on each host and returns what it
// ends with.
func (f *fleet) run(ctx context.Context, args ...string) <-chan error {
	psjob := hoststest.BuildJob(f.t, "cmd/psjob")
	mine := hosts.Program{psjob, "--json"}
	count := append(hosts.Program{psjob, "--json", "--model", "count"}, args...)
	ended := make(chan error, 1)
	k := len(f.net.Hosts())
	go func() {
		_, err := hosts.Job{Hosts: f.net.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(k, count)}.Run(ctx)
		ended <- err
	}()
	return ended
}

// plan runs psidecar plan and returns what it prints.
func (f *fleet) plan(args ...string) (string, error) {
	cmd := exec.Command(f.program, append([]string{"plan"}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := f.net.Host(0).Run(f.t.Context(), cmd)
	return out.String(), err
}

// shown returns the plans, nil while there are none.
func (f *fleet) shown() *api.JobPlan {
	f.t.Helper()
	text, err := f.plan("show", "--json")
	var d api.Description
	if err != nil || protojson.Unmarshal([]byte(text), &d) != nil {
		f.t.Fatalf("psidecar plan show: %s, %v", text, err)
	}
	if len(d.GetJobs()) == 0 {
		return nil
	}
	return d.GetJobs()[0]
}

// reading is what the hosts have sent and received, and how many requests the
// proxies have seen.
type reading struct {
	bytes    []uint64
	requests uint64
}

func (f *fleet) read() reading {
	f.t.Helper()
	var r reading
	for i, h := range f.net.Hosts() {
		c := require.Value(h.Counters())(f.t)
		r.bytes = append(r.bytes, c.SentBytes+c.ReceivedBytes)
		state := require.Value(f.all[i].Connections(f.t.Context()))(f.t)
		for _, j := range state.Jobs {
			r.requests += j.Plain + j.Split
		}
	}
	return r
}

// since returns the bytes of the busiest host since an earlier reading, for
// each request.
func (r reading) since(before reading) float64 {
	most := uint64(0)
	for i := range r.bytes {
		most = max(most, r.bytes[i]-before.bytes[i])
	}
	return float64(most) / float64(r.requests-before.requests)
}

// busiest returns the bytes of the busiest host for each of the next 300 requests. The job must
// not end before.
func (f *fleet) busiest(ended <-chan error) float64 {
	f.t.Helper()
	first := f.read()
	for now := first; ; now = f.read() {
		if now.requests >= first.requests+300 {
			return now.since(first)
		}
		select {
		case err := <-ended:
			f.t.Fatalf("the job ended after %d of 300 requests: %v", now.requests-first.requests, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A job whose workers have favourites trains with all keys at home. The planner
// proposes what should move, and when that is applied the busiest host moves
// much less, as predicted, and the sums are right.
func TestPlanFromReports(t *testing.T) {
	f := start(t, 4)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	ended := f.run(ctx, "--count-keys", "1000000", "--count-batch", "3000", "--count-favourites", "5000", "--count-common", "0.05",
		"--count-compute", "60ms", "--steps", "400")
	var e *api.Epoch
	for e == nil {
		select {
		case err := <-ended:
			t.Fatalf("the job ended before a plan was made: %v", err)
		case <-time.After(500 * time.Millisecond):
		}
		if p := f.shown(); p != nil && len(p.GetEpochs()) > 0 && p.GetEpochs()[0].GetKeys() > 12000 {
			e = p.GetEpochs()[0]
		}
	}
	if e.GetState() != api.Epoch_PROPOSED {
		t.Errorf("a planner that was not told to act has a plan that is %v", e.GetState())
	}
	before := f.busiest(ended)
	if text, err := f.plan("apply", "--wait", "5m"); err != nil {
		t.Fatalf("psidecar plan apply: %s", text)
	}
	after := f.busiest(ended)
	load := func(of func(*api.HostLoad) float64) (most float64) {
		for _, h := range e.GetHosts() {
			most = max(most, of(h))
		}
		return most
	}
	// What came of it is known when all agents have reported again.
	for running := true; running && load((*api.HostLoad).GetActual) == 0; {
		select {
		case err := <-ended:
			require.NoError(t, err)
			ended, running = nil, false
		case <-time.After(500 * time.Millisecond):
		}
		for _, e = range f.shown().GetEpochs() {
			if e.GetState() == api.Epoch_DONE {
				break
			}
		}
	}
	if ended != nil {
		require.NoError(t, <-ended)
	}
	had, predicted, actual := load((*api.HostLoad).GetBefore), load((*api.HostLoad).GetPredicted), load((*api.HostLoad).GetActual)
	t.Logf("busiest host: %.0f bytes a request before, %.0f after; planned %.0f to %.0f bytes a step, came %.0f", before, after, had, predicted, actual)
	// Keys that nobody had used yet when it was planned are not among the
	// predicted.
	if after*2.5 > before || predicted*5 > had || actual < predicted*0.7 || actual*5 > had {
		t.Errorf("busiest host: %.0f bytes a request before, %.0f after; planned %.0f to %.0f bytes a step, came %.0f", before, after, had, predicted, actual)
	}
}

// TestWandering measures, for minutes: hot keys that wander, with a planner that
// does not act, and with one that does. What the job moves when it ends and
// compares all sums is left out.
func TestWandering(t *testing.T) {
	require.Measurement(t)
	var home float64
	for _, c := range []struct {
		name    string
		planner []string
	}{
		{"home", nil},
		{"dppa", []string{"--planner-act", "--planner-strategy", "dppa"}},
		{"locality", []string{"--planner-act"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := start(t, 4, c.planner...)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			ended := f.run(ctx, "--count-keys", "1000000", "--count-batch", "3000", "--count-favourites", "5000", "--count-common", "0.05",
				"--count-wander", "400", "--count-compute", "100ms", "--steps", "1200")
			require.Await(t, "the job's requests", func() error {
				if n := f.read().requests; n < 100 {
					return fmt.Errorf("%v so far", n)
				}
				return nil
			})
			first, began := f.read(), time.Now()
			last := first
			for running := true; running; {
				select {
				case err := <-ended:
					require.NoError(t, err)
					running = false
				case <-time.After(2 * time.Second):
					if now := f.read(); now.requests > last.requests+100 {
						t.Logf("%3.0f s: %5.0f", time.Since(began).Seconds(), now.since(last))
						last = now
					}
				}
			}
			each := last.since(first)
			text, err := f.plan("show")
			t.Logf("%s: %.0f bytes a request at the busiest host\n%s%v", c.name, each, text, err)
			if c.name == "home" {
				home = each
			} else if home > 0 { // it was not left out
				t.Logf("%s: %.2f times below home", c.name, home/each)
			}
		})
	}
}
