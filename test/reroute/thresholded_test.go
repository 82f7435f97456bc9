package reroute

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/acting"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// While nearly all of each push waits, keys move from server to server, or were placed
// before the run, or by a plan and then move, and proxies are killed: at any time where
// the job repeats what is lost, and else all at once while its workers rest. What waits
// of a key goes along with it and survives: once the threshold has ended all sums are
// exact.
func TestThresholded(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	resend := []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=200"}
	for _, c := range []thresholdedCase{
		{name: "moved", steps: 60, least: 10},
		{name: "moved, resend, kills", env: resend, steps: 100, kills: 2, least: 10},
		{name: "placed, resend, kills", placed: true, env: resend, steps: 60, kills: 2},
		{name: "placed, kills at rest", placed: true, rests: []int{20, 35}, steps: 60},
		{name: "placed and moved, resend, kills", planned: true, env: resend, steps: 100, kills: 2, least: 150},
		{name: "placed and moved, kills at rest", planned: true, rests: []int{25, 45}, steps: 70, least: 150},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, program, psjob) })
	}
}

type thresholdedCase struct {
	name    string
	placed  bool // by file, before the run
	planned bool // a plan places all keys first
	env     []string
	steps   int
	kills   int   // at any time
	rests   []int // before these steps the workers rest, and all proxies are killed
	least   uint64
}

func (c thresholdedCase) run(t *testing.T, program, psjob string) {
	const k, ids = 2, 400
	n := hoststest.New(t, hosts.Config{Hosts: k})
	p := acting.NewPlanner(t, n.Host(0))
	where := p.Moving()
	if c.placed {
		where = []string{"--placement", scatter(t, ids, k)}
	}
	w := watched{rng: rand.New(rand.NewPCG(1, 7)), kills: c.kills, least: c.least, folder: t.TempDir(), rests: c.rests}
	for _, step := range c.rests {
		require.NoError(t, os.WriteFile(w.rest(step), nil, 0o600))
	}
	w.proxies = acting.StartProxiesOf(t, program, n.Hosts(), append(where, "--same-host", "--threshold", "0.99", "--threshold-until", strconv.Itoa(c.steps-10))...)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	mine := hosts.Program{psjob, "--json"}
	// All workers push all keys in each step.
	count := hosts.Program{psjob, "--json", "--model", "count", "--count-late", "--count-verify", "--count-keys", strconv.Itoa(ids), "--count-rest", w.folder,
		"--count-batch", strconv.Itoa(ids), "--value-length", "2", "--count-most", "1000", "--count-compute", "30ms", "--steps", strconv.Itoa(c.steps)}
	r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(k, count), Env: c.env}.Start(ctx)
	require.NoError(t, err)
	name, some := acting.JobName(n.Host(0).IPv4), 20
	if c.planned {
		some = 3 * ids
	}
	untilOver(t, r, 20*time.Millisecond, func(over bool) {
		if w.look() && !c.placed && !p.Busy(name) && p.Propose(w.rng, name, hoststest.JobKeys(t, ids), some, k) {
			some = 20
		}
		if !over && w.resting(r) {
			w.killAll(ctx, t)
		}
	})
	t.Logf("%d keys moved, %d requests split, %d kills and %d rests left; of %d values %d went at once", w.moved, w.split, w.kills, len(w.rests), w.values, w.sent)
	if w.kills > 0 || len(w.rests) > 0 || w.split == 0 || w.moved < w.least {
		t.Errorf("%d keys moved, %d requests were split, and %d kills and %d rests are left: too little to tell anything", w.moved, w.split, w.kills, len(w.rests))
	}
	if w.values == 0 || w.sent*4 > w.values {
		t.Errorf("%d of %d values went at once", w.sent, w.values)
	}
}

// watched is proxies, and what was seen of them.
type watched struct {
	proxies      []*acting.Restarting
	rng          *rand.Rand
	kills        int    // left
	folder       string // of the steps before which workers rest
	rests        []int  // left
	least        uint64 // keys that are to move, before the first kill
	moved, split uint64 // at the most that was seen at once
	values, sent uint64 // under the threshold, by the proxy that has seen most while something waited
	killed       uint64 // requests split, when a proxy was killed last
}

// look takes in how things are, kills a proxy when enough has happened since the
// last kill, and reports whether all proxies have seen requests.
func (w *watched) look() (counting bool) {
	counting = true
	moved, split, waits := uint64(0), uint64(0), true
	for _, p := range w.proxies {
		s, err := p.State()
		if err != nil || len(s.Jobs) != 1 || s.Values == nil {
			counting = false
			continue
		}
		j := s.Jobs[0]
		counting = counting && j.Plain+j.Split > 20
		moved, split = moved+j.Moved, split+j.Split
		waits = waits && s.Values.Waiting > 0
		w.note(s.Values)
	}
	w.moved, w.split = max(w.moved, moved), max(w.split, split)
	if split < w.killed {
		w.killed = 0
	}
	if counting && waits && w.kills > 0 && w.moved >= w.least && split >= w.killed+20 {
		w.kills--
		w.killed = split
		w.proxies[w.kills%len(w.proxies)].Kill()
	}
	return counting
}

// rest returns the file that has workers rest before a step.
func (w *watched) rest(step int) string { return filepath.Join(w.folder, strconv.Itoa(step)) }

// resting reports whether all workers rest before the next step of rests.
func (w *watched) resting(r *hosts.Running) bool {
	if len(w.rests) == 0 {
		return false
	}
	for _, n := range r.Workers {
		if !strings.Contains(n.Stderr.String(), fmt.Sprintf("msg=resting role=worker step=%d ", w.rests[0])) {
			return false
		}
	}
	return true
}

// killAll kills all proxies while the workers rest, so that no request is under way,
// and has the job go on over the next ones.
func (w *watched) killAll(ctx context.Context, t *testing.T) {
	t.Helper()
	var before []proxy.State
	for _, p := range w.proxies {
		before = append(before, w.await(ctx, t, p, "to have something that waits", func(s proxy.State) bool {
			return s.Values != nil && s.Values.Waiting > 0
		}))
	}
	for _, p := range w.proxies {
		p.Kill()
	}
	for i, p := range w.proxies {
		w.await(ctx, t, p, "to go on where the one before was killed", func(s proxy.State) bool {
			return s.Instance != before[i].Instance && len(s.Jobs) == 1 && s.Jobs[0].Ready && len(s.Connections) >= len(before[i].Connections)
		})
	}
	require.NoError(t, os.Remove(w.rest(w.rests[0])))
	w.rests = w.rests[1:]
}

// await waits for a proxy to be as it is to be, and returns how it is then.
func (w *watched) await(ctx context.Context, t *testing.T, p *acting.Restarting, what string, ok func(proxy.State) bool) (s proxy.State) {
	t.Helper()
	require.Await(t, "the proxy on "+p.Host.Name+" "+what, func() (err error) {
		if s, err = p.State(); err == nil && !ok(s) {
			err = fmt.Errorf("%+v", s)
		}
		if err != nil && ctx.Err() != nil {
			t.Fatalf("waiting for the proxy on %s %s: %v", p.Host.Name, what, err)
		}
		return err
	})
	return s
}

func (w *watched) note(s *proxy.ValuesState) {
	for _, f := range s.Forms {
		if f.Form == "threshold" && f.Values > w.values && s.Waiting > 0 {
			w.values, w.sent = f.Values, f.Sent
		}
	}
}
