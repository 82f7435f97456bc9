package observe

import (
	"fmt"
	"net/netip"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// role orders nodes in views: scheduler, servers, workers. Its text is PS-lite's DMLC_ROLE.
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

// A Job is one training job: all nodes that have the same scheduler. Runs of the same job
// follow each other in one Job. The observer's lock guards it, except for Sums, which has its
// own.
//
// Invariants: every node in byAddress, byID and byPID is in nodes. servers and workers only
// grow, because Sums counts by their indexes: a node that was absorbed by another leaves nodes
// and stays there, marked gone.
type Job struct {
	Scheduler netip.AddrPort
	Sums      *counts.Locality

	observer    *Observer
	dialect     pslite.Dialect
	unread      int         // streams with messages of no known dialect
	fork        pslite.Fork // the PS-lite fork of those, if it could be recognized
	first, last int64       // times of its first and last message, in nanoseconds since 1970
	serverCount int         // as configured or as the node table says; 0: unknown
	// Likewise.
	workerCount   int
	nodes         []*Node
	byAddress     map[netip.AddrPort]*Node
	byID          map[int32]*Node
	byPID         map[int]*Node
	servers       []*Node // by index
	workers       []*Node // by index
	met           int     // number of times that a process of the job was met, a clock for Node.met
	joining       bool    // nodes have asked to be added since the last node table: a run is starting
	table         uint64  // digest of the run's node table; 0: not seen
	ranked        bool    // rankByAddress has nothing left to do
	oneIn         uint32  // one request in so many is sampled now; 0: see Options.OneIn
	sampledAtMost uint32  // the largest such number so far
	looked        looked
	parts         partKeys
}

// A Node is a member of a job. A node is found by what is known first (address, process or
// PS-lite id), so one member may appear as two nodes until evidence joins them: see identify
// and absorb.
type Node struct {
	job      *Job
	role     role
	index    int            // among the job's nodes of its role, in order of discovery; what Sums counts by
	id       int32          // PS-lite's node id; 0: unknown
	idFrom   string         // how id became known: one of the from constants
	address  netip.AddrPort // where it listens; invalid while not known
	process  Process        // zero for a node on another host
	met      int            // Job.met when its process was met last
	range0   int            // rank whose key range its requests fall into; -1: none yet
	conflict bool           // requests fell into key ranges of several ranks, so they say nothing
	gone     bool           // absorbed by another node
}

// job returns the job of a scheduler and makes it if there is none. It returns nil, and counts
// a refusal, if maxJobs jobs are active. The jobs divide the memory for counts equally.
func (o *Observer) job(scheduler netip.AddrPort) *Job {
	if j := o.jobs[scheduler]; j != nil {
		return j
	}
	// A user can start any number of processes with any scheduler address, so old jobs are
	// dropped only once they have been idle for long.
	if len(o.jobs) >= maxJobs && !o.dropIdlest() {
		o.misses.Refused++
		return nil
	}
	j := &Job{
		Scheduler: scheduler, Sums: counts.NewLocality(o.opts.Locality), observer: o,
		byAddress: map[netip.AddrPort]*Node{}, byID: map[int32]*Node{}, byPID: map[int]*Node{},
		sampledAtMost: 1,
	}
	o.jobs[scheduler] = j
	for _, other := range o.jobs { // they share the memory
		other.Sums.Table.SetMemory(o.opts.Locality.Counts.MemoryBytes / len(o.jobs))
	}
	return j
}

// dropIdlest forgets the job that has been silent for longest, with its streams, if that is at
// least ten minutes. It reports whether it did.
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

// noteActivity records when the job was active and which dialect it speaks. The newest dialect
// that any stream shows wins: control messages lack the fields by which the newest dialects
// differ from older ones, so a stream of control messages may look older than the job is.
func (j *Job) noteActivity(at int64, d *pslite.Detector) {
	if j.first == 0 {
		j.first = at
	}
	j.last = max(j.last, at)
	// Constants of newer dialects are smaller.
	if dialect, _ := d.Dialect(); dialect != pslite.Unknown && (j.dialect == pslite.Unknown || dialect < j.dialect) {
		j.dialect = dialect
	}
}

// sampled returns the weight of a request: the number of requests that it stands for. The
// kernel puts its rate into the records of sampled requests. A request that was not sampled
// shows that the rate is at least one in two. of is how many messages one that is seen stands for.
func (j *Job) sampled(r *bpf.Record, of uint64) (weight uint64) {
	oneIn := r.OneIn()
	if oneIn == 0 {
		oneIn = j.observer.opts.OneIn()
	}
	// The record does not say at which rate the request was left out.
	if !r.Has(bpf.Sampled) {
		oneIn = max(j.oneIn, 2)
		if j.oneIn == 0 {
			oneIn = max(j.observer.opts.OneIn(), 2)
		}
	}
	oneIn = max(oneIn, 1) * uint32(of)
	j.sampledAtMost = max(j.sampledAtMost, oneIn)
	return uint64(oneIn)
}

// addNode adds a node to the job. It returns nil, and counts a refusal, at maxNodes.
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

// setRole gives a node its role, once. The node's index in the job's counts follows from it, so
// it can never change.
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

// setAddress adds an address at which the node listens, unless another node has it. The first
// one becomes the node's own; a process that listens on several interfaces has more.
func (n *Node) setAddress(a netip.AddrPort) {
	if !a.IsValid() || n.job.byAddress[a] != nil {
		return
	}
	n.job.byAddress[a] = n
	if !n.address.IsValid() {
		n.address = a
	}
}

// setID gives the node a PS-lite id, which implies the role: 1 is the scheduler, servers have
// even ids from 8 on, workers odd ones from 9 on. An id that contradicts the node's role, or a
// reliable id that the node has, is ignored. Another node that had the id loses it; it belongs
// to an earlier run.
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

// rank returns the node's rank among those of its role and how it became known; -1 if it is
// not.
func (n *Node) rank() (int, string) {
	switch {
	case n.id >= 8:
		return int(n.id-8) / 2, n.idFrom
	case n.role == roleScheduler:
		return 0, "role"
	}
	return -1, ""
}

// Ways in which a rank became known, from the most to the least reliable. Those from keys and
// order are guesses, which better evidence replaces (guessed).
const (
	fromIdentity = "identity"
	fromTable    = "node table"
	fromMessage  = "own message" // heartbeats name the sender, acknowledgements both ends
	fromKeys     = "key range"
	fromOrder    = "address order"
)

// Name returns the name that users see: scheduler, server0 or worker3, or role and address
// while the rank is unknown. Callers hold the observer's lock, as during Options.Uses.
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

// Ranked reports whether the node's rank, and with it its final name, is known. The locking is
// that of Name.
func (n *Node) Ranked() bool {
	rank, _ := n.rank()
	return rank >= 0
}

// asked notes the first and last key of a request to a server. PS-lite gives each server an
// equal range of the key space, so the keys tell the server's rank. Where a request spans
// several ranges, or two servers get requests for the same one, the job divides its keys in a
// way of its own and nothing is concluded.
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
