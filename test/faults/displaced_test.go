package faults

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// displaced is how many of the keys that a job counts are not at home in these
// tests.
const displaced = 1000

// TestUpgradeBesideMovedKeys is the sequence of docs/deploying.md while keys stand
// where they were moved to: they stay there, no sum goes wrong, and they come
// home when that is asked for.
func TestUpgradeBesideMovedKeys(t *testing.T) {
	t.Parallel()
	want := elsewhere(t, 4)
	f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second, plan: want})
	r := f.start(f.countingSlowly())
	r.training()
	f.propose()
	f.psidecar("plan", "apply", "--wait", "5m")
	f.stand(displaced)
	r.upgrade(2)
	f.stand(displaced)
	if got := f.recorded(); !maps.Equal(got, ownersOf(want)) {
		t.Errorf("the planner has %d displaced keys, or others' owners, %d were moved", len(got), len(want))
	}
	if r.over() {
		t.Fatal("the job has ended before its keys could come home")
	}
	f.psidecar("restore", "--wait", "5m")
	f.stand(0)
	r.exact()
	f.unguarded()
	f.asBefore()
}

// TestUpgradeBesidePlacedKeys is the same with keys that were placed before the
// job began.
func TestUpgradeBesidePlacedKeys(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second,
		proxyArgs: []string{"--insecure", "--placement", placed(t, elsewhere(t, 4))}})
	r := f.start(f.countingSlowly())
	r.training()
	f.stand(displaced)
	r.upgrade(2)
	if !r.over() {
		f.stand(displaced)
	}
	r.exact()
	f.asBefore()
	f.unguarded()
}

// countingSlowly is a job that goes on until exact is called.
func (f *fleet) countingSlowly() hosts.Job {
	j := f.counting(50)
	for i, w := range j.Workers {
		j.Workers[i] = append(slices.Clone(w), "--count-compute", "30ms")
	}
	return f.unending(j)
}

// elsewhere puts keys of the workload count on servers that are not their homes.
func elsewhere(t *testing.T, servers int32) (all []plan.Range) {
	t.Helper()
	for i, key := range hoststest.JobKeys(t, displaced) {
		other := 1 + int32(i)%(servers-1)
		all = append(all, plan.Range{Keys: plan.One(key), Owner: (plan.HomeOf(key, int(servers)) + other) % servers})
	}
	return all
}

// ownersOf are the servers that have the keys of such a list.
func ownersOf(all []plan.Range) map[uint64]int32 {
	owners := map[uint64]int32{}
	for _, r := range all {
		owners[r.First] = r.Owner
	}
	return owners
}

// placed writes a placement.
func placed(t *testing.T, where []plan.Range) (file string) {
	t.Helper()
	var keys []uint64
	var owners []int32
	for _, r := range where {
		keys, owners = append(keys, r.First), append(owners, r.Owner)
	}
	return hoststest.WritePlacement(t, folder(t), []int{0, 1, 2, 3}, keys, owners)
}

// propose has the planner propose the fleet's plan for the run that is under way:
// between two planners the plan comes into the store as from one that has seen
// the run.
func (f *fleet) propose() {
	f.t.Helper()
	run := f.state(f.sidecars[0]).Jobs[0].Run
	if !run.Valid() {
		f.t.Fatalf("nobody has named the run: %q", run)
	}
	old := f.planner.Current()
	f.planner.StayAway(true)
	f.planner.kill()
	<-old.Done()
	f.keep(run)
	f.planner.StayAway(false)
	f.await("another "+f.planner.String(), func() error { return f.planner.runs(old) })
	f.await("the planner to serve", func() error {
		_, err := hoststest.Get(f.planner.Host, plannerHTP, "/readyz")
		return err
	})
}

// keep puts the fleet's plan into the store.
func (f *fleet) keep(run plan.Run) {
	f.t.Helper()
	s := require.Value(store.OpenFile(f.plans))(f.t)
	defer s.Close()
	service := require.Value(plans.New(f.t.Context(), s, plans.Options{}))(f.t)
	ctx, cancel := context.WithCancel(f.t.Context())
	watched := make(chan error, 1)
	request := &api.WatchRequest{Host: "a test", Runs: []*api.Running{{Job: f.jobName(), Run: string(run), Servers: 4, Used: true}}}
	go func() { watched <- service.Watch(request, nowhere{ctx: ctx}) }()
	f.await("the planner's part to know the run", func() error {
		if service.Run(f.jobName()) != run {
			return fmt.Errorf("it knows %q", service.Run(f.jobName()))
		}
		return nil
	})
	epoch, err := service.Propose(f.t.Context(), plans.Proposal{Job: f.jobName(), Run: run, Servers: 4, Reason: "a test", Targets: f.config.plan})
	cancel()
	<-watched
	if err != nil || epoch == 0 {
		f.t.Fatalf("epoch %d, %v", epoch, err)
	}
}

// nowhere discards a watcher's events.
type nowhere struct {
	grpc.ServerStreamingServer[api.PlanEvent]
	ctx context.Context
}

func (n nowhere) Context() context.Context  { return n.ctx }
func (n nowhere) Send(*api.PlanEvent) error { return nil }
func (n nowhere) SendMsg(any) error         { return nil }

func (f *fleet) jobName() string { return f.net.Host(0).Address(9091) }

// psidecar runs a command that asks the planner.
func (f *fleet) psidecar(args ...string) {
	f.t.Helper()
	cmd := exec.Command(f.programs.psidecar, append(args, "--planner", f.planner.Host.Address(plannerAPI))...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := f.planner.Host.Run(f.t.Context(), cmd); err != nil {
		f.t.Fatalf("psidecar %v: %v: %s", args, err, out.Bytes())
	}
}

// stand waits until every proxy knows that n keys are displaced, and holds no
// request for any.
func (f *fleet) stand(keys int) {
	f.t.Helper()
	for _, s := range f.sidecars {
		f.await(fmt.Sprintf("%s to know of %d displaced keys", s.proxy, keys), func() error {
			all := f.state(s).Jobs
			if len(all) != 1 || all[0].Displaced != keys || !all[0].Ready || all[0].Holds != 0 {
				return fmt.Errorf("%+v", all)
			}
			return nil
		})
	}
}

// unguarded waits until no job counts as running whose keys were displaced: what
// ends from then on leaves nothing in the kernel.
func (f *fleet) unguarded() {
	f.t.Helper()
	for _, s := range f.sidecars {
		f.await(s.proxy.String()+" to see the job's end", func() error {
			if all := f.state(s).Jobs; slices.ContainsFunc(all, func(j jobs.State) bool { return j.Guarded }) {
				return fmt.Errorf("%+v", all)
			}
			return nil
		})
	}
}

// recorded are the planner's displaced keys and their owners, as it sends them to a
// new proxy.
func (f *fleet) recorded() map[uint64]int32 {
	f.t.Helper()
	conn := require.Value(grpc.NewClient("passthrough:"+f.planner.Host.Address(plannerAPI), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return f.planner.Host.Dial(ctx, "tcp", address)
		})))(f.t)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Minute)
	defer cancel()
	stream := require.Value(api.NewPlansClient(conn).Watch(ctx, &api.WatchRequest{Host: "a test"}))(f.t)
	owners := map[uint64]int32{}
	for {
		e := require.Value(stream.Recv())(f.t)
		if e.GetListed() {
			return owners
		}
		d := e.GetSnapshot().GetDisplaced()
		for i, key := range d.GetFirst() {
			owner := d.GetOwner()[min(i, len(d.GetOwner())-1)]
			last := key
			if len(d.GetLast()) > 0 {
				last = d.GetLast()[i]
			}
			for ; key <= last; key++ {
				owners[key] = owner
			}
		}
	}
}
