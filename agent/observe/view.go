package observe

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// A JobView is a job at one moment.
type JobView struct {
	Job            *Job
	Dialect        pslite.Dialect
	First, Last    int64  // nanoseconds since 1970, of its messages
	Table          uint64 // digest of the run's node table, 0 where it was not seen
	Servers        int    // as configured, or as the node table says; 0 unknown
	Workers        int
	SampledOneIn   uint32 // the sparsest sampling so far
	Looked         Looked
	Nodes          []NodeView
	ServersByIndex []string // names, as Sums counts them; empty for one to be left out
	WorkersByIndex []string
	Synced         int
	Unsynced       int
	Unplaced       int
	Missed         uint64
	Unread         int         // directions of connections with messages of no dialect, so far
	Fork           pslite.Fork // whose those are, where they show it
}

// A NodeView is a node at one moment.
type NodeView struct {
	Name     string
	Role     string
	Rank     int // -1 unknown
	RankFrom string
	Address  netip.AddrPort
	Process  Process // zero unless it runs on this host
}

// Jobs returns all jobs, by scheduler.
func (o *Observer) Jobs() []JobView {
	o.mu.Lock()
	defer o.mu.Unlock()
	views := make([]JobView, 0, len(o.jobs))
	for _, j := range o.jobs {
		views = append(views, o.view(j))
	}
	slices.SortFunc(views, func(a, b JobView) int { return a.Job.Scheduler.Compare(b.Job.Scheduler) })
	return views
}

// Shifted reports whether a worker of any job has turned to other keys since its
// last window of uses.
func (o *Observer) Shifted() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, j := range o.jobs {
		if j.Sums.Shifted() {
			return true
		}
	}
	return false
}

// Job returns the job whose scheduler's address, as text, is name.
func (o *Observer) Job(name string) (JobView, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, j := range o.jobs {
		if j.Scheduler.String() == name {
			return o.view(j), true
		}
	}
	return JobView{}, false
}

// Knows reports whether there is a job whose scheduler's address, as text, is name.
func (o *Observer) Knows(name string) bool {
	at, err := netip.ParseAddrPort(name)
	if err != nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.jobs[at] != nil
}

func (o *Observer) view(j *Job) JobView {
	j.rankByAddress()
	v := JobView{
		Job: j, Dialect: j.dialect, First: j.first, Last: j.last, Table: j.table,
		Servers: j.serverCount, Workers: j.workerCount, SampledOneIn: j.sampledAtMost, Looked: j.looked.view(),
		Unread: j.unread, Fork: j.fork,
	}
	for _, n := range j.nodes {
		rank, from := n.rank()
		v.Nodes = append(v.Nodes, NodeView{n.Name(), n.role.String(), rank, from, n.address, n.process})
	}
	slices.SortStableFunc(v.Nodes, func(a, b NodeView) int {
		return cmp.Or(cmp.Compare(roleNamed(a.Role), roleNamed(b.Role)), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Name, b.Name))
	})
	for _, n := range j.servers {
		v.ServersByIndex = append(v.ServersByIndex, n.shownName())
	}
	for _, n := range j.workers {
		v.WorkersByIndex = append(v.WorkersByIndex, n.shownName())
	}
	for _, s := range o.streams {
		if s.closed || s.twin || s.timing || (s.sender == nil || s.sender.job != j) && (s.receiver == nil || s.receiver.job != j) {
			continue
		}
		v.Missed += s.missed
		switch {
		case !s.synced:
			v.Unsynced++
		case s.spoke && (s.sender == nil || s.receiver == nil):
			v.Unplaced++
			v.Synced++
		default:
			v.Synced++
		}
	}
	return v
}

func (n *Node) shownName() string {
	if n.gone || n.id == 0 && !n.address.IsValid() && n.process.PID == 0 {
		return ""
	}
	return n.Name()
}
