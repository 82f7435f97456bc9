package observe

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A JobView is a copy of a job's state at one moment. Job itself may be used for its Sums only.
type JobView struct {
	Job            *Job
	Dialect        pslite.Dialect
	First, Last    int64  // time of its first and last message, in nanoseconds since 1970
	Table          uint64 // digest of the run's node table, 0 where it was not seen
	Servers        int    // as configured or as the node table says; 0: unknown
	Workers        int    // likewise
	SampledOneIn   uint32 // the sparsest sampling so far: one request in so many
	Looked         Looked
	Nodes          []NodeView
	ServersByIndex []string // names, in the order in which Sums counts; empty for a node that is not shown
	WorkersByIndex []string
	Streams
	Unread int         // streams with messages of no known dialect, so far
	Fork   pslite.Fork // the PS-lite fork of those, if it was recognized
}

// Streams counts a job's open streams.
type Streams struct {
	Synced   int    // whose frames the kernel follows
	Unsynced int    // whose frames it does not follow yet
	Unplaced int    // synced ones with an end that is not known
	Missed   uint64 // bytes that passed on them before they were synced
}

// A NodeView is a copy of a node's state at one moment.
type NodeView struct {
	Name     string
	Role     string
	Rank     int    // -1: unknown
	RankFrom string // how the rank became known
	Address  netip.AddrPort
	Process  Process // zero if it runs on another host
}

// Jobs returns all jobs, ordered by the scheduler's address.
func (o *Observer) Jobs() []JobView {
	o.mu.Lock()
	defer o.mu.Unlock()
	views, open := make([]JobView, 0, len(o.jobs)), o.open()
	for _, j := range o.jobs {
		views = append(views, j.view(open[j]))
	}
	slices.SortFunc(views, func(a, b JobView) int { return a.Job.Scheduler.Compare(b.Job.Scheduler) })
	return views
}

// Looked returns which part of each job's requests was sampled, by the scheduler's address.
func (o *Observer) Looked() map[netip.AddrPort]Looked {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[netip.AddrPort]Looked, len(o.jobs))
	for at, j := range o.jobs {
		all[at] = j.looked.view()
	}
	return all
}

// Shifted reports whether a worker of any job has turned to other keys since its last window of
// uses, so that a report should not wait.
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

// Job returns the job with a scheduler's address, given as text.
func (o *Observer) Job(name string) (JobView, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, j := range o.jobs {
		if j.Scheduler.String() == name {
			return j.view(o.open()[j]), true
		}
	}
	return JobView{}, false
}

// Knows reports whether a job with that scheduler address, given as text, is known.
func (o *Observer) Knows(name string) bool {
	at, err := netip.ParseAddrPort(name)
	if err != nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.jobs[at] != nil
}

// open counts the open streams of each job. The caller holds o.mu.
func (o *Observer) open() map[*Job]Streams {
	open := map[*Job]Streams{}
	for _, s := range o.streams {
		// A twin is the same connection seen at its other end, and must not count twice.
		if s.closed || s.twin || s.timing {
			continue
		}
		for i, n := range []*Node{s.sender, s.receiver} {
			if n != nil && (i == 0 || s.sender == nil || n.job != s.sender.job) {
				open[n.job] = open[n.job].with(s)
			}
		}
	}
	return open
}

// with returns the counts with one more stream.
func (c Streams) with(s *stream) Streams {
	c.Missed += s.missed
	if !s.synced {
		c.Unsynced++
		return c
	}
	c.Synced++
	// One that has not sent a message is no puzzle: its node may introduce itself yet.
	if s.spoke && (s.sender == nil || s.receiver == nil) {
		c.Unplaced++
	}
	return c
}

// view copies a job's state, with counts of its streams. It derives ranks first, so that names are
// final where they can be. The caller holds the observer's mu.
func (j *Job) view(open Streams) JobView {
	j.rankByAddress()
	v := JobView{
		Job: j, Dialect: j.dialect, First: j.first, Last: j.last, Table: j.table,
		Servers: j.serverCount, Workers: j.workerCount, SampledOneIn: j.sampledAtMost, Looked: j.looked.view(),
		Streams: open, Unread: j.unread, Fork: j.fork,
	}
	// Absorbed nodes are no longer in j.nodes, only in the lists by index below.
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
	return v
}

// shownName returns the node's name, or "" for a node that would show up twice or means nothing
// to users: it was absorbed, or its id, address and process were all taken over by a later run.
func (n *Node) shownName() string {
	if n.gone || n.id == 0 && !n.address.IsValid() && n.process.PID == 0 {
		return ""
	}
	return n.Name()
}
