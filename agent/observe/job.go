package observe

import (
	"fmt"
	"net/netip"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/proxy/pslite"
)

type role int8

const (
	roleUnknown role = iota
	roleScheduler
	roleServer
	roleWorker
)

func (r role) String() string {
	return [...]string{"unknown", "scheduler", "server", "worker"}[r]
}

func roleOf(r pslite.Role) role {
	switch r {
	case pslite.Scheduler:
		return roleScheduler
	case pslite.Server:
		return roleServer
	case pslite.Worker:
		return roleWorker
	}
	return roleUnknown
}

// A Job is one training job: all nodes that have the same scheduler. The observer's
// lock guards it, but for Sums, which has its own.
//
// Invariant: every node in byAddress, byID, byPID, servers and workers is in nodes.
type Job struct {
	Scheduler netip.AddrPort
	Sums      *counts.Locality

	observer      *Observer
	dialect       pslite.Dialect
	unread        int         // streams with messages that are not read
	fork          pslite.Fork // whose those are, where they show it
	first, last   int64       // times of its first and last message
	serverCount   int         // as configured, 0 unknown
	workerCount   int
	nodes         []*Node
	byAddress     map[netip.AddrPort]*Node
	byID          map[int32]*Node
	byPID         map[int]*Node
	servers       []*Node // by index
	workers       []*Node // by index
	met           int     // how often one of its processes was
	joining       bool    // nodes have asked to be added since the last node table
	table         uint64  // digest of the run's node table, 0 where it was not seen
	ranked        bool    // address order was used and holds
	oneIn         uint32  // how its requests are sampled now; 0: as Options.OneIn says
	sampledAtMost uint32  // the sparsest sampling so far
	looked        looked
}

// A Node is a member of a job.
type Node struct {
	job      *Job
	role     role
	index    int   // among the job's nodes of its role, in the order they were seen
	id       int32 // PS-lite's, 0 unknown
	idFrom   string
	address  netip.AddrPort // where it listens; invalid while not known
	process  Process        // zero for a node on another host
	met      int            // when, by the job's count
	range0   int            // rank whose key range it was asked for, -1 none yet
	conflict bool           // keys of several ranks were asked of it
	gone     bool           // it turned out to be another node's process: see absorb
}

// job returns the job of that scheduler, made if need be; nil beyond the
// limit.
func (o *Observer) job(scheduler netip.AddrPort) *Job {
	if j := o.jobs[scheduler]; j != nil {
		return j
	}
	if len(o.jobs) >= maxJobs && !o.dropIdlest() {
		o.misses.Refused++
		return nil
	}
	opts := o.opts.Locality
	if slow := o.opts.Slow; slow != nil {
		opts.Slow = func(s counts.Slow) { slow(scheduler, s) }
	}
	j := &Job{
		Scheduler: scheduler, Sums: counts.NewLocality(opts), observer: o,
		byAddress: map[netip.AddrPort]*Node{}, byID: map[int32]*Node{}, byPID: map[int]*Node{},
		sampledAtMost: 1,
	}
	o.jobs[scheduler] = j
	for _, other := range o.jobs { // they share the memory
		other.Sums.Table.SetMemory(opts.Counts.MemoryBytes / len(o.jobs))
	}
	return j
}

// dropIdlest forgets the job that has been silent longest, if that is at least
// ten minutes.
func (o *Observer) dropIdlest() bool {
	var idlest *Job
	for _, j := range o.jobs {
		if idlest == nil || j.last < idlest.last {
			idlest = j
		}
	}
	const idle = 10 * 60 * 1e9
	if idlest == nil || o.now-idlest.last < idle {
		return false
	}
	for id, s := range o.streams {
		if s.sender != nil && s.sender.job == idlest || s.receiver != nil && s.receiver.job == idlest {
			o.closeStream(s)
			delete(o.streams, id)
		}
	}
	delete(o.jobs, idlest.Scheduler)
	return true
}

// noteActivity keeps when the job was active and what it speaks.
func (j *Job) noteActivity(at int64, d *pslite.Detector) {
	if j.first == 0 {
		j.first = at
	}
	j.last = max(j.last, at)
	// Control messages leave out what would tell the newest dialects apart.
	if dialect, _ := d.Dialect(); dialect != pslite.Unknown && (j.dialect == pslite.Unknown || dialect < j.dialect) {
		j.dialect = dialect
	}
}

// sampled notes whether a request's keys are looked at, and returns for how many
// requests it stands.
func (j *Job) sampled(r *bpf.Record) (weight uint64) {
	oneIn := r.OneIn()
	if oneIn == 0 {
		oneIn = j.observer.opts.OneIn()
	}
	if !r.Has(bpf.Sampled) {
		oneIn = max(j.oneIn, 2)
		if j.oneIn == 0 {
			oneIn = max(j.observer.opts.OneIn(), 2)
		}
	}
	j.sampledAtMost = max(j.sampledAtMost, oneIn)
	return uint64(max(oneIn, 1))
}

// addNode returns a new node of the job; nil beyond the limit.
func (j *Job) addNode(r role) *Node {
	if len(j.nodes) >= maxNodes {
		j.observer.misses.Refused++
		return nil
	}
	n := &Node{job: j, range0: -1}
	j.nodes = append(j.nodes, n)
	n.setRole(r)
	return n
}

// setRole gives a node its role, once: its index in the job's counts follows from it
// and cannot change later.
func (n *Node) setRole(r role) {
	if n.role != roleUnknown || r == roleUnknown {
		return
	}
	n.role = r
	switch r {
	case roleServer:
		n.index = len(n.job.servers)
		n.job.servers = append(n.job.servers, n)
	case roleWorker:
		n.index = len(n.job.workers)
		n.job.workers = append(n.job.workers, n)
	case roleScheduler:
		if n.id == 0 {
			n.setID(1, "role")
		}
	}
}

func (n *Node) setAddress(a netip.AddrPort) {
	if !a.IsValid() || n.job.byAddress[a] != nil {
		return
	}
	n.job.byAddress[a] = n
	if !n.address.IsValid() {
		n.address = a
	}
}

// setID gives the node its PS-lite id, which also tells the role: servers have
// even ids from 8 on, workers odd ones from 9 on. Another that had it, in an
// earlier run of the job, has none then.
func (n *Node) setID(id int32, from string) {
	if r := roleOfID(id); r == roleUnknown || !n.mayBe(r) || n.id == id && !n.guessed() {
		return
	}
	if old := n.job.byID[n.id]; old == n {
		delete(n.job.byID, n.id)
	}
	if other := n.job.byID[id]; other != nil && other != n {
		other.id, other.idFrom = 0, ""
	}
	n.id, n.idFrom = id, from
	n.job.byID[id] = n
	n.setRole(roleOfID(id))
}

func roleOfID(id int32) role {
	if r, _, ok := pslite.Rank(id); ok {
		return roleOf(r)
	}
	return roleUnknown
}

// rank returns the node's rank and how it is known; -1 if it is not.
func (n *Node) rank() (int, string) {
	switch {
	case n.id >= 8:
		return int(n.id-8) / 2, n.idFrom
	case n.role == roleScheduler:
		return 0, "role"
	}
	return -1, ""
}

// Ways in which a rank became known.
const (
	fromIdentity = "identity"
	fromTable    = "node table"
	fromMessage  = "own message" // heartbeats name the sender, acknowledgements both ends
	fromKeys     = "key range"
	fromOrder    = "address order"
)

// Name returns what users see: scheduler, server0, worker3, or the role and
// the address while the rank is not known.
func (n *Node) Name() string {
	if n.role == roleScheduler {
		return "scheduler"
	}
	if rank, _ := n.rank(); rank >= 0 {
		return fmt.Sprintf("%s%d", n.role, rank)
	}
	if n.address.IsValid() {
		return fmt.Sprintf("%s@%s", n.role, n.address)
	}
	return fmt.Sprintf("%s-pid-%d", n.role, n.process.PID)
}

// Ranked reports whether the node's rank, and with it its name, is known. It holds
// during Options.Uses, as Name does.
func (n *Node) Ranked() bool {
	rank, _ := n.rank()
	return rank >= 0
}

// asked notes between which keys a server is asked for some: they tell its rank, each
// server having its share of the key space. Where the keys of several servers
// are asked of one, or one's of several, the job slices keys in a way of its
// own, and nothing follows from them.
func (n *Node) asked(first, last uint64) {
	if n.id != 0 && n.idFrom != fromOrder || n.conflict || n.job.serverCount < 2 {
		return
	}
	for _, k := range []uint64{first, last} {
		rank, ok := pslite.Owner(k, n.job.serverCount)
		if !ok || n.range0 >= 0 && n.range0 != rank {
			n.conflict = true
			return
		}
		n.range0 = rank
	}
	id := pslite.ServerID(n.range0)
	if other := n.job.byID[id]; other != nil && other != n {
		n.conflict = true
		return
	}
	n.setID(id, fromKeys)
}
