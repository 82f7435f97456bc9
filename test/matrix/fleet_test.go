package matrix

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/acting"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/matrix/pattern"
	"github.com/psidecar/psidecar/test/require"
)

// apiece is how many pairs run at a time. They wait most of the time.
const apiece = 5

// fleet is what all pairs run on: two hosts with psidecar and one without, and a planner whose plans
// the test makes.
type fleet struct {
	t       *testing.T
	net     *hosts.Net
	on      []*hosts.Host // with psidecar
	planner *acting.Planner
	proxies []*acting.Restarting
	program string // psidecar
	job     string // a pattern's node
	file    string // placement of all patterns' keys
	base    [][]string
	folder  string      // of the proxies' state, another for each measure
	groups  chan string // cgroups in which no job runs
	states  atomic.Pointer[[]proxy.State]

	mu      sync.Mutex // guards the rest
	running map[*pair]bool
	turn    int
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	require.Root(t)
	require.BPF(t)
	f := &fleet{t: t, running: map[*pair]bool{}, program: hoststest.BuildJob(t, "cmd/psidecar"), job: hoststest.BuildJob(t, "test/matrix/job"), net: hoststest.New(t, hosts.Config{Hosts: 3})}
	f.on = f.net.Hosts()[:2]
	f.planner = acting.NewPlanner(t, f.net.Host(2))
	f.planner.Program = f.program
	f.groups = make(chan string, apiece)
	var groups []string
	for i := range apiece {
		groups = append(groups, fmt.Sprintf("job%d", i))
		f.groups <- groups[i]
	}
	f.proxies = acting.StartProxiesFor(t, f.program, f.on, groups)
	for _, p := range f.proxies {
		f.base = append(f.base, p.Args())
	}
	f.file = f.place()
	return f
}

// args returns the arguments of a proxy with flags of a measure.
func (f *fleet) args(at int, flags []string) []string {
	return slices.Concat(f.base[at], []string{"--state-dir", filepath.Join(f.folder, f.on[at].Name)}, flags)
}

// over waits until the proxies have seen that the jobs of the measure before are over. One that is replaced
// earlier, with another folder for its state, rightly takes that for lost.
func (f *fleet) over(t *testing.T) {
	t.Helper()
	for _, p := range f.proxies {
		require.Await(t, "no connections have to fail any more", func() error {
			s, err := p.State()
			if err == nil && s.Guard != nil && s.Guard.Closed+s.Guard.Pending > 0 {
				err = fmt.Errorf("%+v", *s.Guard)
			}
			return err
		})
	}
}

// place writes a placement in which about half of the keys of all patterns are elsewhere than at home.
func (f *fleet) place() string {
	var keys []uint64
	for _, p := range pattern.All() {
		keys = append(keys, p.KeyList()...)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	owners := make([]int32, len(keys))
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range owners {
		owners[i] = rng.Int32N(2)
	}
	return hoststest.WritePlacement(f.t, f.t.TempDir(), []int{0, 1}, keys, owners)
}

// look asks the proxies again and again, for all pairs at once. It leaves out those that are away.
func (f *fleet) look(ctx context.Context) {
	for ctx.Err() == nil {
		all := []proxy.State{}
		for _, p := range f.proxies {
			if s, err := p.State(); err == nil {
				all = append(all, s)
			}
		}
		f.states.Store(&all)
		wait(ctx)
	}
}

// wait waits for what is looked at again and again.
func wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}

// interfere has happen what a measure does to all jobs, each time that all that run are ripe for it, until ctx ends.
func (f *fleet) interfere(ctx context.Context, around func(turn int)) {
	for ; ctx.Err() == nil; wait(ctx) {
		f.mu.Lock()
		all := slices.Collect(maps.Keys(f.running))
		ripe := len(all) > 0 && !slices.ContainsFunc(all, func(x *pair) bool { return !x.ripe })
		f.mu.Unlock()
		if !ripe {
			continue
		}
		around(f.turn)
		f.turn++
		f.mu.Lock()
		for _, x := range all {
			x.turns, x.since, x.ripe = x.turns+1, x.moved, x.settled
		}
		f.mu.Unlock()
	}
}
