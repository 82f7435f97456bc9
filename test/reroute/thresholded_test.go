package reroute

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/jobtest"
	"github.com/psidecar/psidecar/test/require"
)

// While nearly all of each push waits, keys move from server to server, or were
// placed before the run, and, where the job repeats what is lost, proxies are
// killed. What waits of a key goes along with it and survives: once the threshold
// has ended all sums are exact.
func TestThresholded(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	const k, ids = 2, 400
	psjob := jobtest.Build(t, "cmd/psjob")
	resend := []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=200"}
	for _, c := range []struct {
		name   string
		placed bool
		env    []string
		steps  int
		kills  int
	}{
		{"moved", false, nil, 60, 0},
		{"moved, resend, kills", false, resend, 100, 2},
		{"placed, resend, kills", true, resend, 60, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := hoststest.New(t, hosts.Config{Hosts: k})
			p := newPlanner(t, n.Host(0))
			where := p.moving()
			if c.placed {
				where = []string{"--placement", scatter(t, ids, k)}
			}
			w := watched{rng: rand.New(rand.NewPCG(1, 7)), kills: c.kills}
			if !c.placed {
				w.least = 10
			}
			w.proxies = startFleet(t, n, append(where, "--same-host", "--threshold", "0.99", "--threshold-until", strconv.Itoa(c.steps-10))...)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			mine := hosts.Program{psjob, "--json"}
			// All workers push all keys in each step.
			count := hosts.Program{psjob, "--json", "--model", "count", "--count-late", "--count-verify", "--count-keys", strconv.Itoa(ids),
				"--count-batch", strconv.Itoa(ids), "--value-length", "2", "--count-most", "1000", "--count-compute", "30ms", "--steps", strconv.Itoa(c.steps)}
			r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(k, count), Env: c.env}.Start(ctx)
			if err != nil {
				t.Fatal(err)
			}
			name := jobName(n.Host(0).IPv4)
			untilOver(t, r, 20*time.Millisecond, func(bool) {
				if w.look() && !c.placed && !p.busy(name) {
					p.propose(w.rng, name, ids, 20, k)
				}
			})
			t.Logf("%d keys moved, %d requests split, %d kills left; of %d values %d went at once", w.moved, w.split, w.kills, w.values, w.sent)
			if w.kills > 0 || w.split == 0 || w.moved < w.least {
				t.Errorf("%d keys moved, %d requests were split, and %d kills are left: too little to tell anything", w.moved, w.split, w.kills)
			}
			if w.values == 0 || w.sent*4 > w.values {
				t.Errorf("%d of %d values went at once", w.sent, w.values)
			}
		})
	}
}

// watched is proxies, and what was seen of them.
type watched struct {
	proxies      []*restarting
	rng          *rand.Rand
	kills        int    // left
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
		s, err := p.state()
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
		w.proxies[w.kills%len(w.proxies)].kill()
	}
	return counting
}

func (w *watched) note(s *proxy.ValuesState) {
	for _, f := range s.Forms {
		if f.Form == "threshold" && f.Values > w.values && s.Waiting > 0 {
			w.values, w.sent = f.Values, f.Sent
		}
	}
}
