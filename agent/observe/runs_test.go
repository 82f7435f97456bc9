package observe

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// member is a node in one run of a job.
type member struct {
	role    role
	id      int32
	address netip.AddrPort
	pid     int
}

func (m *member) name() string {
	if m.role == roleScheduler {
		return "scheduler"
	}
	rank, _ := (&Node{role: m.role, id: m.id}).rank()
	return fmt.Sprintf("%s%d", m.role, rank)
}

// wireRole is the inverse of roleOf.
func wireRole(r role) pslite.Role {
	return map[role]pslite.Role{roleScheduler: pslite.Scheduler, roleServer: pslite.Server, roleWorker: pslite.Worker}[r]
}

// TestRunsOfAJob has a job run several times on the same hosts and with the same
// scheduler's address. Ports, and numbers of processes, are dealt again each time
// from so few that nodes get those that others of another role or rank had. The
// agent of one of the hosts learns of the nodes in whatever order; after each
// table it knows each node by its name, once, where it listens and by which
// process it runs.
func TestRunsOfAJob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")}
		scheduler := netip.AddrPortFrom(hosts[0], 9000)
		home := rapid.SampledFrom(hosts).Draw(t, "home")
		servers, workers := rapid.IntRange(1, 3).Draw(t, "servers"), rapid.IntRange(1, 3).Draw(t, "workers")
		o := New(Options{Locality: counts.DefaultLocalityOptions})
		for run := range rapid.IntRange(1, 5).Draw(t, "runs") {
			all := deal(t, hosts, scheduler, servers, workers)
			o.run(t, home, all)
			views := o.Jobs()
			if len(views) != 1 {
				t.Fatalf("%d jobs", len(views))
			}
			v := views[0]
			for i := range all {
				m := &all[i]
				at := slices.IndexFunc(v.Nodes, func(n NodeView) bool { return n.Name == m.name() })
				if at < 0 {
					t.Fatalf("run %d: there is no %s among %+v", run, m.name(), v.Nodes)
				}
				n := v.Nodes[at]
				if n.Address != m.address || n.Role != m.role.String() || m.address.Addr() == home && n.Process.PID != m.pid {
					t.Fatalf("run %d: %s is %+v, want process %d at %s", run, m.name(), n, m.pid, m.address)
				}
			}
			if len(v.Nodes) != len(all) {
				t.Fatalf("run %d: %d nodes, want %d: %+v", run, len(v.Nodes), len(all), v.Nodes)
			}
			shown := slices.DeleteFunc(slices.Concat(v.ServersByIndex, v.WorkersByIndex), func(name string) bool { return name == "" })
			slices.Sort(shown)
			if len(shown) != servers+workers || len(slices.Compact(shown)) != servers+workers {
				t.Fatalf("run %d: servers %q, workers %q", run, v.ServersByIndex, v.WorkersByIndex)
			}
			if j := v.Job; len(j.byAddress) > 2*len(all) || len(j.byPID) > 2*len(all) {
				t.Fatalf("run %d: %d addresses and %d processes are known", run, len(j.byAddress), len(j.byPID))
			}
		}
	})
}

// A job may come again with fewer nodes than before: how many it has is how many
// it has now.
func TestFewerNodesThanBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")}
		scheduler := netip.AddrPortFrom(hosts[0], 9000)
		home := rapid.SampledFrom(hosts).Draw(t, "home")
		o := New(Options{Locality: counts.DefaultLocalityOptions})
		for run := range 4 {
			servers, workers := rapid.IntRange(1, 3).Draw(t, "servers"), rapid.IntRange(1, 3).Draw(t, "workers")
			all := deal(t, hosts, scheduler, servers, workers)
			o.run(t, home, all)
			v := o.Jobs()[0]
			if v.Servers != servers || v.Workers != workers {
				t.Fatalf("run %d: %d servers and %d workers, want %d and %d", run, v.Servers, v.Workers, servers, workers)
			}
			for i := range all {
				m := &all[i]
				at := slices.IndexFunc(v.Nodes, func(n NodeView) bool { return n.Name == m.name() })
				if at < 0 || v.Nodes[at].Address != m.address || m.address.Addr() == home && v.Nodes[at].Process.PID != m.pid {
					t.Fatalf("run %d: %s at %s with process %d is not among %+v", run, m.name(), m.address, m.pid, v.Nodes)
				}
			}
		}
	})
}

// A window of uses ends where the next run's nodes ask to be added, whether or not
// its table comes by.
func TestWindowOfTheRunBefore(t *testing.T) {
	options := counts.DefaultLocalityOptions
	options.WindowKeys = 100
	o := New(Options{Locality: options})
	scheduler, worker := netip.MustParseAddrPort("10.0.0.1:9000"), netip.MustParseAddrPort("10.0.0.2:5000")
	join := pslite.Node{Role: pslite.Worker, ID: pslite.Empty, Hostname: worker.Addr().String(), Port: int32(worker.Port())}
	table := []pslite.Node{{Role: pslite.Scheduler, ID: 1, Hostname: scheduler.Addr().String(), Port: int32(scheduler.Port())}, join}
	table[1].ID = 9
	o.takeJoin(&stream{to: scheduler}, &join)
	o.takeTable(scheduler, table)
	sums := o.jobs[scheduler].Sums
	use := func() {
		sums.Use(1, counts.Batch{Keys: []uint64{7}, Each: [counts.Planes]uint64{counts.Pushes: 1}})
	}
	use()
	if w := sums.TakeWindow(100); w == nil {
		t.Fatal("a run's uses are in no window")
	}
	use()
	o.takeJoin(&stream{to: scheduler}, &join)
	if w := sums.TakeWindow(100); w != nil {
		t.Errorf("keys %v of the run before are in the next one's window", w.Keys)
	}
}

// What is told of a job says of which run it is, by the node table as the run's name
// has it: an agent that lags behind tells of the run before for a while. A node that
// comes back makes no other run of it. Where the next run's nodes were not heard to
// ask, its table ends the window.
func TestTableNamesTheRun(t *testing.T) {
	options := counts.DefaultLocalityOptions
	options.WindowKeys = 100
	o := New(Options{Locality: options})
	scheduler := netip.MustParseAddrPort("10.0.0.1:9000")
	table := func(port int32) []pslite.Node {
		return []pslite.Node{{Role: pslite.Worker, ID: 9, Hostname: "10.0.0.2", Port: port}, {Role: pslite.Scheduler, ID: 1, Hostname: "10.0.0.1", Port: 9000}}
	}
	digest := func(port int32) uint64 {
		var named pslite.Table
		named.Learn(&pslite.Meta{Control: pslite.Control{Cmd: pslite.AddNode, Nodes: table(port)}})
		run, known := plan.NewRun("", time.Now(), named.Digest()).Table()
		if !known {
			t.Fatal("a run does not say its table")
		}
		return run
	}
	told := func() uint64 { return o.Jobs()[0].Table }
	use := func() {
		o.jobs[scheduler].Sums.Use(1, counts.Batch{Keys: []uint64{7}, Each: [counts.Planes]uint64{counts.Pushes: 1}})
	}
	if o.job(scheduler) == nil {
		t.Fatal("there is no room for a job")
	}
	use()
	o.takeTable(scheduler, table(5000))
	if told() != 0 {
		t.Error("an agent that began within a run tells of which one")
	}
	if w := o.jobs[scheduler].Sums.TakeWindow(100); w != nil {
		t.Errorf("keys %v of a run that began unheard are in the next one's window", w.Keys)
	}
	o.takeJoin(&stream{to: scheduler}, &pslite.Node{ID: pslite.Empty})
	o.takeTable(scheduler, table(5001))
	if told() != digest(5001) {
		t.Errorf("the run's table is %x, want %x", told(), digest(5001))
	}
	back := table(5001)
	back[0].IsRecovery, back[0].Port = true, 5002
	o.takeTable(scheduler, back)
	if told() != digest(5001) {
		t.Error("a node that comes back makes another run of it")
	}
	sums := o.jobs[scheduler].Sums
	use()
	o.takeTable(scheduler, table(5003))
	if told() != digest(5003) {
		t.Errorf("the next run's table is %x, want %x", told(), digest(5003))
	}
	if w := sums.TakeWindow(100); w != nil {
		t.Errorf("keys %v of the run before are in the next one's window", w.Keys)
	}
}

// deal returns the nodes of a run, the scheduler first. Ports are of four a host,
// and processes of a few numbers.
func deal(t *rapid.T, hosts []netip.Addr, scheduler netip.AddrPort, servers, workers int) []member {
	places := rapid.Permutation(places(hosts)).Draw(t, "places")
	pids := rapid.Permutation([]int{1, 2, 3, 4, 5, 6, 7, 8, 9}).Draw(t, "pids")
	all := []member{{roleScheduler, 1, scheduler, 100}}
	for i := range servers + workers {
		m := member{role: roleServer, id: int32(8 + 2*i), address: places[i], pid: pids[i]}
		if i >= servers {
			m.role, m.id = roleWorker, int32(9+2*(i-servers))
		}
		all = append(all, m)
	}
	return all
}

func places(hosts []netip.Addr) (all []netip.AddrPort) {
	for _, h := range hosts {
		for port := range uint16(4) {
			all = append(all, netip.AddrPortFrom(h, 5000+port))
		}
	}
	return all
}

// run tells the observer of a run as an agent on host home sees it: that
// processes there have come, by looking or by their connections, that they ask
// to be added, the table, and who says what.
func (o *Observer) run(t *rapid.T, home netip.Addr, all []member) {
	scheduler := all[0].address
	var table []pslite.Node
	for i := range all {
		m := &all[i]
		table = append(table, pslite.Node{Role: wireRole(m.role), ID: m.id, Hostname: m.address.Addr().String(), Port: int32(m.address.Port())})
	}
	meet := func(m *member) {
		o.Meet(Process{PID: m.pid, Role: m.role.String(), Scheduler: scheduler, Servers: 0, Listens: []netip.AddrPort{m.address}})
	}
	for _, i := range rapid.Permutation(indices(len(all))).Draw(t, "order") {
		m := &all[i]
		if m.address.Addr() != home {
			continue
		}
		early := rapid.Bool().Draw(t, "met early")
		if early {
			meet(m)
		}
		if i > 0 {
			entry := pslite.Node{Role: wireRole(m.role), ID: pslite.Empty, Hostname: m.address.Addr().String(), Port: int32(m.address.Port())}
			o.takeJoin(&stream{to: scheduler}, &entry)
		}
		if !early {
			meet(m)
		}
	}
	o.takeJoin(&stream{to: scheduler}, &pslite.Node{ID: pslite.Empty}) // of a host without a name
	o.takeTable(scheduler, rapid.Permutation(table).Draw(t, "table"))
	for _, m := range all[1:] {
		if m.address.Addr() == home && rapid.Bool().Draw(t, "says who it is") {
			s := &stream{id: bpf.StreamID(uint64(m.pid) << 1), to: scheduler, identity: m.id, sender: o.jobs[scheduler].byPID[m.pid]}
			o.place(s, 1)
			if s.sender == nil || s.sender.Name() != m.name() {
				t.Fatalf("%s at %s is taken for %v", m.name(), m.address, s.sender)
			}
		}
	}
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
