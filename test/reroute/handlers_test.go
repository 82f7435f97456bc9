package reroute

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

const probedIDs = 500

// writeSamples writes samples with so many ids in libsvm's format.
func writeSamples(t *testing.T, ids int) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 1))
	var b bytes.Buffer
	for i := range 400 {
		fmt.Fprint(&b, i%2)
		for id := i % 5; id < ids; id += 1 + rng.IntN(20) {
			fmt.Fprintf(&b, " %d:1", id)
		}
		fmt.Fprintln(&b)
	}
	file := filepath.Join(t.TempDir(), "samples.libsvm")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// What servers do with pushes is found out with a scratch key. Keys of those
// that add move; those of others stay, and why is said.
func TestProbed(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	const k = 2
	n := hoststest.New(t, hosts.Config{Hosts: k})
	p := newPlanner(t, n.Host(0))
	p.program = program
	var all []*sidecar.Sidecar
	for _, h := range n.Hosts() {
		all = append(all, sidecar.Start(t, h, program, "sidecar", "--act", "--allow-probe", "--planner", p.address, "--state-dir", t.TempDir()))
	}
	samples := writeSamples(t, probedIDs)
	runs := make(map[plan.Run]bool) // that have ended
	for _, c := range []struct {
		rule, handler string
		moves         bool
	}{{"add", "add", true}, {"ftrl", "none", false}, {"adagrad", "none", false}, {"assign", "add", true}} { // psjob's assign takes only the first push so
		t.Run(c.rule, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			mine := hosts.Program{psjob, "--json", "--model", "lr", "--data", samples, "--epochs", "100000", "--batch", "20", "--rule", c.rule}
			r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(k, mine)}.Start(ctx)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- r.Wait() }()
			defer func() { cancel(); <-done }() // it trains until it is stopped
			rng := rand.New(rand.NewPCG(1, 1))
			name := jobName(n.Host(0).IPv4)
			for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
				if !p.busy(name) && plain(t, all) > 20 {
					p.propose(rng, name, probedIDs, 100, k)
				}
				var moved, refused uint64
				var handler string
				var run plan.Run
				for _, s := range all {
					for _, j := range states(t, s) {
						if runs[j.Run] { // until a job begins, the one before is shown
							continue
						}
						moved, refused, run = moved+j.Moved, refused+j.Refused, j.Run
						if j.Handler != "unknown" {
							handler = j.Handler
						}
					}
				}
				if handler == c.handler && (moved > 0) == c.moves && (refused > 0) != c.moves {
					runs[run] = true
					break
				}
				if time.Now().After(end) {
					t.Fatalf("handler %q, %d keys moved, %d refused; want handler %s", handler, moved, refused, c.handler)
				}
				select {
				case err := <-done:
					done <- err
					t.Fatalf("the job has ended: %v", err)
				default:
				}
			}
			if !c.moves {
				p.refuses(name, "handler", "--placement")
			}
		})
	}
}

// refuses waits for the planner to say why keys were not moved.
func (p *planner) refuses(jobName, reason, says string) {
	p.t.Helper()
	var told string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if told = p.run("plan", "show"); strings.Contains(told, jobName) && strings.Contains(told, reason) && strings.Contains(told, says) {
			return
		}
	}
	p.t.Errorf("psidecar plan show does not say %q and %q:\n%s", reason, says, told)
}

// run runs a verb of psidecar against the planner.
func (p *planner) run(args ...string) string {
	p.t.Helper()
	cmd := exec.Command(p.program, append(args, "--planner", p.address)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := p.host.Run(p.t.Context(), cmd); err != nil {
		p.t.Errorf("psidecar %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// While a job counts, all keys that have moved are brought home; the sums are
// right, and nothing moves afterwards.
func TestRestored(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	const k, ids = 3, 2000
	n := hoststest.New(t, hosts.Config{Hosts: k})
	p := newPlanner(t, n.Host(0))
	p.program = program
	var all []*sidecar.Sidecar
	for _, h := range n.Hosts() {
		all = append(all, sidecar.Start(t, h, program, "sidecar", "--act", "--handler", "add", "--planner", p.address, "--state-dir", t.TempDir()))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	mine := hosts.Program{psjob, "--json"}
	goesOn, end := hoststest.WhileTraining(t)
	count := append(hosts.Program{psjob, "--json", "--model", "count"}, "--count-keys", strconv.Itoa(ids), "--steps", "50", "--count-while", goesOn, "--count-compute", "20ms")
	r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(k, count)}.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Wait() }()
	displaced := func() (most int) {
		for _, s := range all {
			for _, j := range states(t, s) {
				most = max(most, j.Displaced)
			}
		}
		return most
	}
	name, rng := jobName(n.Host(0).IPv4), rand.New(rand.NewPCG(1, 1))
	for displaced() < 300 {
		if !p.busy(name) && plain(t, all) > 20 {
			p.propose(rng, name, ids, 200, k)
		}
		select {
		case err := <-done:
			t.Fatalf("the job ended before keys had moved: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	before := displaced()
	p.run("restore", "--wait", "30s")
	if after := displaced(); after != 0 {
		t.Errorf("%d keys were displaced, %d are after psidecar restore", before, after)
	}
	p.propose(rng, name, ids, 200, k)
	select {
	case err := <-done:
		t.Fatalf("the job ended before its keys were home: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	if after := displaced(); after != 0 {
		t.Errorf("%d keys have moved after psidecar restore", after)
	}
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
