package page

import (
	"slices"
	"strconv"
	"time"

	"github.com/psidecar/psidecar/planner/api/measure"
)

// A Key is a parameter's key. In JSON it is a number. JavaScript is exact up to 2^53 only and
// keys go up to 2^64-1, so every answer with keys has them as text too.
type Key uint64

// Text returns the key in decimal.
func (k Key) Text() string { return strconv.FormatUint(uint64(k), 10) }

// A Range is a stretch of time. Zero ends are open.
type Range struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

// Jobs is the answer of /api/v1/jobs.
type Jobs struct {
	Jobs []Job `json:"jobs"`
}

// A Job is a training job as this host, or the planner, sees it.
type Job struct {
	Name string `json:"job"` // host:port of its scheduler, which identifies a running job
	// Called is its name, which all of its runs share; empty if it has none. CalledFrom is the
	// source of the name: owner (of its pods), environment or annotation. Remarks lists the
	// owner's wishes that are not followed, with the reason, and traffic that is not seen.
	Called     string   `json:"name,omitempty"`
	CalledFrom string   `json:"name_from,omitempty"`
	Remarks    []string `json:"remarks,omitempty"`

	Dialect   string    `json:"dialect"` // of its messages: dmlc, dmlc-2018, dmlc-2017, byteps; empty before the first
	Servers   int       `json:"servers"` // as configured; 0: unknown
	Workers   int       `json:"workers"` // as configured; 0: unknown
	FirstSeen time.Time `json:"first_seen"`
	LastSeen  time.Time `json:"last_seen"` // of its last message
	Nodes     []Node    `json:"nodes"`

	Connections Connections `json:"connections"`

	Accesses       uint64   `json:"accesses"`                // pulls and pushes, counting each key of each request
	DistinctKeys   uint64   `json:"distinct_keys"`           // an estimate if Exact is false
	KeysAtLeast    bool     `json:"keys_at_least,omitempty"` // from the planner: DistinctKeys is a lower bound, since it does not know which keys hosts share
	Exact          bool     `json:"exact"`                   // every key is counted one by one, and every request
	SampledOneIn   uint32   `json:"sampled_one_in"`          // 1: the keys of every request are counted
	Bytes          uint64   `json:"bytes"`                   // of all messages between its nodes
	LeftHostBytes  uint64   `json:"left_host_bytes"`         // the part of them that left this host
	StepsPerSecond float64  `json:"steps_per_second"`        // of the median worker, over the last ten seconds
	BytesPerSecond float64  `json:"bytes_per_second"`        // of all messages, over the last ten seconds
	Latency        Latency  `json:"latency"`                 // of all requests
	Stragglers     []string `json:"stragglers"`              // names of workers that lag well behind the others

	State  string    `json:"state"`           // starting, running, stalled or over; empty: unknown
	Since  time.Time `json:"since,omitzero"`  // when it stopped making progress
	Cause  string    `json:"cause,omitempty"` // the node, or the pair of nodes (worker3-server1), that causes it
	What   string    `json:"what,omitempty"`  // the state and its cause in a sentence
	Stalls []Stall   `json:"stalls"`          // nodes, and pairs of nodes, without progress, longest first

	Sampling *JobSampling `json:"sampling,omitempty"` // from an agent: how its keys are sampled

	// Measures says which of psidecar's measures are in effect for the job, on how many of its
	// connections, and why not on the others; empty if the job is over. If the proxy is another
	// process than the agent, its /api/v1/connections has most of them.
	Measures []measure.Line `json:"measures"`
}

// The states of a job.
const (
	Starting = "starting" // no worker has sent a request yet
	Running  = "running"
	Stalled  = "stalled" // no worker makes progress
	Over     = "over"    // its processes have ended
)

// Kinds of stalls.
const (
	Unanswered = "unanswered" // a request has no answer
	Silent     = "silent"     // a worker sends no request, and waits for nobody
	AtBarrier  = "barrier"    // a worker waits at a barrier that others have not entered
	Late       = "late"       // a server answers, but much later than the others, or than it used to
	Straggling = "straggling" // the other workers wait for this one
)

// A Stall is a node, or a pair of nodes, that does not make progress as it should.
type Stall struct {
	Kind    string    `json:"kind"`         // one of the above
	Who     string    `json:"who"`          // the node that waits, is silent or late
	On      string    `json:"on,omitempty"` // the node that it waits for
	Since   time.Time `json:"since"`
	Seconds float64   `json:"seconds"` // since then, at the time of the answer
	Keys    string    `json:"keys,omitempty"`
	Bytes   uint64    `json:"bytes,omitempty"` // of the request
	Why     string    `json:"why,omitempty"`   // what sockets and processes show
	Text    string    `json:"text"`            // everything in a sentence
}

// JobSampling says how a job's keys are sampled, and what is needed to compute the error of its
// counts (CountError).
type JobSampling struct {
	OneIn        uint32  `json:"one_in"`        // one in so many windows of timestamps
	Window       uint32  `json:"window"`        // timestamps in a window; 0: as for the agent
	Requests     uint64  `json:"requests"`      // requests with keys so far
	Sampled      uint64  `json:"sampled"`       // those whose keys were counted
	Estimated    uint64  `json:"estimated"`     // sum of the weights of the sampled requests, an estimate of Requests
	Spread       uint64  `json:"spread"`        // sum of n(n-1) over the sampled requests, n being their weights
	CostPercent  float64 `json:"cost_percent"`  // of one core, for its keys
	AtFloor      bool    `json:"at_floor"`      // it is not sampled more sparsely, whatever it costs
	ErrorPercent float64 `json:"error_percent"` // of the count of a key with 500 pulls and 500 pushes: see UsesError
}

// A Node is the scheduler, a server or a worker of a job.
type Node struct {
	Name      string `json:"name"`                // scheduler, server0, worker3, or worker@address while the rank is unknown
	Role      string `json:"role"`                // scheduler, server, worker
	Rank      int    `json:"rank"`                // -1 unknown
	RankFrom  string `json:"rank_from,omitempty"` // how the rank became known: identity, node table, key range, address order
	Address   string `json:"address,omitempty"`   // where it listens
	Local     bool   `json:"local"`               // it runs on this host
	Host      string `json:"host,omitempty"`      // from the planner: the host that it runs on
	PID       int    `json:"pid,omitempty"`
	Pod       string `json:"pod,omitempty"`       // Kubernetes pod UID, from its cgroup
	PodName   *Pod   `json:"pod_name,omitempty"`  // if the API server has named it
	Container string `json:"container,omitempty"` // container id, from its cgroup
}

// A Pod is a pod as the API server names it.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
}

// Connections counts a job's connections by how far they can be followed.
type Connections struct {
	Synced   int    `json:"synced"`
	Unsynced int    `json:"unsynced"`     // older than the agent, and the frame boundary is not found yet
	Missed   uint64 `json:"missed_bytes"` // bytes that passed before it was found
	Unplaced int    `json:"unplaced"`     // synced, with a node at one end that is not known yet
}

// Latency is a distribution of times from a request to its answer, in seconds.
type Latency struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// HeatmapQuery are the parameters of /api/v1/heatmap besides job: blocks (at most so many,
// default 256), first and last (keys, inclusive), from and to (times: seconds since 1970, or if
// negative, seconds before now), measure, and by. by is worker, the default, or time: then
// there is a row for each stretch of time, as many as rows says, with the counts of the workers
// named by workers, separated by commas (default: all).
type HeatmapQuery struct {
	Blocks      int
	First, Last Key
	Range       Range
	Measure     Measure
	Rows        int      // above 0: a row for each stretch of time
	Workers     []string // by time: the workers to count; none: all
}

// Of reports whether a worker is to be counted.
func (q *HeatmapQuery) Of(worker string) bool {
	return len(q.Workers) == 0 || slices.Contains(q.Workers, worker)
}

// leastRow is the shortest stretch of time of a row.
const leastRow = 10 * time.Second

// RowsOf divides the time between two moments into at most n equal stretches of at least ten
// seconds. The last one may end after to. There is always one.
func RowsOf(from, to time.Time, n int) []Range {
	each := max(to.Sub(from)/time.Duration(n)+1, leastRow)
	var rows []Range
	for at := from; at.Before(to) || len(rows) == 0; at = at.Add(each) {
		rows = append(rows, Range{From: at, To: at.Add(each)})
	}
	return rows
}

// Heatmap is the answer of /api/v1/heatmap: what each worker did in each block of keys.
type Heatmap struct {
	Job     string     `json:"job"`
	Workers []string   `json:"workers"`         // names, one for each row
	Times   []Range    `json:"times,omitempty"` // by time: one for each row, oldest first, instead of Workers
	Blocks  []Block    `json:"blocks"`          // one for each column
	Counts  [][]uint64 `json:"counts"`          // [worker][block], of Measure

	Measure      Measure `json:"measure"`
	Range                // what was asked for; absent: since the job was first seen
	Exact        bool    `json:"exact"`          // false: see SampledOneIn
	SampledOneIn uint32  `json:"sampled_one_in"` // the sparsest sampling from which counts are scaled up
	// ErrorPercent is by how much the count of an average cell that is not empty
	// may be wrong for that: see UsesError. 0 where all was looked at.
	ErrorPercent float64 `json:"error_percent"`
	// Finest says that a query for fewer keys or more blocks would show no more detail: each
	// block is a single key, or as fine as it was counted.
	Finest bool `json:"finest"`
}

// A Block is a range of keys, including both ends.
type Block struct {
	First     Key    `json:"first"`
	Last      Key    `json:"last"`
	FirstText string `json:"first_text"`
	LastText  string `json:"last_text"`
	Name      string `json:"name,omitempty"`   // name of its keys (--names), such as items[0..99]
	Keys      uint64 `json:"keys"`             // number of distinct keys seen in it
	Folded    bool   `json:"folded,omitempty"` // its sums are exact, but its keys are not counted one by one
}

// NewBlock returns the block of keys from first to last.
func NewBlock(first, last, keys uint64, folded bool) Block {
	f, l := Key(first), Key(last)
	return Block{First: f, Last: l, FirstText: f.Text(), LastText: l.Text(), Keys: keys, Folded: folded}
}

// A Measure is the quantity that a heatmap shows.
type Measure string

// The measures.
const (
	Accesses    Measure = "accesses" // pulls and pushes
	Pulls       Measure = "pulls"
	Pushes      Measure = "pushes"
	Bytes       Measure = "bytes" // of values, in both directions
	PulledBytes Measure = "pulled_bytes"
	PushedBytes Measure = "pushed_bytes"
)

// Of returns the measure's amount in sums.
func (m Measure) Of(s Sums) uint64 {
	switch m {
	case Pulls:
		return s[PullsPlane]
	case Pushes:
		return s[PushesPlane]
	case Bytes:
		return s[PulledBytesPlane] + s[PushedBytesPlane]
	case PulledBytes:
		return s[PulledBytesPlane]
	case PushedBytes:
		return s[PushedBytesPlane]
	}
	return s.Accesses()
}

// Measures lists all measures.
var Measures = []Measure{Accesses, Pulls, Pushes, Bytes, PulledBytes, PushedBytes}

// Traffic is the answer of /api/v1/traffic: bytes of whole messages between each worker and
// each server, including metas, keys and retransmissions.
type Traffic struct {
	Job       string     `json:"job"`
	Workers   []string   `json:"workers"`
	Servers   []string   `json:"servers"`
	Range                // what was asked for; absent: since the job was first seen
	ToServers [][]uint64 `json:"to_servers"` // [worker][server] bytes of requests
	ToWorkers [][]uint64 `json:"to_workers"` // [worker][server] bytes of answers
	Requests  [][]uint64 `json:"requests"`   // [worker][server] requests, without retransmissions
	// TotalBytes and LeftHostBytes include messages to and from the scheduler.
	TotalBytes    uint64 `json:"total_bytes"`
	LeftHostBytes uint64 `json:"left_host_bytes"`
	RepeatedBytes uint64 `json:"repeated_bytes"` // of messages that PS_RESEND sent again
}

// Keys is the answer of /api/v1/keys (parameter n: number of hottest keys, default 50).
type Keys struct {
	Job     string      `json:"job"`
	Workers []string    `json:"workers"`
	Hottest []HotKey    `json:"hottest"`
	Skew    []SkewPoint `json:"skew"` // ascending; the last point has all keys and accesses
	Sketch  Sketch      `json:"sketch"`
}

// A HotKey is one of the most used keys.
type HotKey struct {
	Key       Key      `json:"key"`
	Text      string   `json:"key_text"`
	Name      string   `json:"name,omitempty"` // what it is called (--names): items[12]
	Accesses  uint64   `json:"accesses"`       // including estimated ones
	Pulls     uint64   `json:"pulls"`
	Pushes    uint64   `json:"pushes"`
	Bytes     uint64   `json:"bytes"`               // of its values, in both directions
	Estimated uint64   `json:"estimated,omitempty"` // accesses that are estimated, at most Sketch.Bound too high
	Error     uint64   `json:"error,omitempty"`     // error of Accesses because of sampling: see UsesError
	Server    string   `json:"server,omitempty"`    // its home
	Workers   []uint64 `json:"workers"`             // accesses by worker
}

// A SkewPoint says that the Keys hottest keys have Accesses together.
type SkewPoint struct {
	Keys     uint64 `json:"keys"`
	Accesses uint64 `json:"accesses"`
}

// Sketch says how precisely a job's keys are counted.
type Sketch struct {
	Job          string  `json:"job"`
	Exact        bool    `json:"exact"` // all keys one by one
	DistinctKeys uint64  `json:"distinct_keys"`
	ExactKeys    uint64  `json:"exact_keys"`    // counted one by one
	Blocks       int     `json:"blocks"`        // blocks with exact sums
	FoldedBlocks int     `json:"folded_blocks"` // those of them whose keys are not all counted one by one
	MemoryBytes  int     `json:"memory_bytes"`
	AtLeast      bool    `json:"at_least,omitempty"` // from the planner: DistinctKeys is a lower bound, and the skew may be stronger
	Bound        uint64  `json:"bound"`              // an estimate is never too low, and at most this much too high
	Percent      float64 `json:"percent"`            // for at least this percentage of the keys
}

// Servers is the answer of /api/v1/servers: the load of servers and workers.
type Servers struct {
	Job     string       `json:"job"`
	Range                // what was asked for; absent: since the job was first seen
	Servers []ServerLoad `json:"servers"`
	Workers []WorkerLoad `json:"workers"`
}

// ServerLoad is the load of one server.
type ServerLoad struct {
	Name     string  `json:"name"`
	Requests uint64  `json:"requests"`
	BytesIn  uint64  `json:"bytes_in"`
	BytesOut uint64  `json:"bytes_out"`
	Share    float64 `json:"share"` // fraction of all servers' bytes
	Latency  Latency `json:"latency"`
}

// WorkerLoad is the traffic and progress of one worker.
type WorkerLoad struct {
	Name           string  `json:"name"`
	Requests       uint64  `json:"requests"`
	BytesIn        uint64  `json:"bytes_in"`
	BytesOut       uint64  `json:"bytes_out"`
	Timestamp      int64   `json:"timestamp"` // of its newest step
	Steps          uint64  `json:"steps"`     // since it was first seen, or in the range that was asked for if that is known
	StepsPerSecond float64 `json:"steps_per_second"`
	Straggler      bool    `json:"straggler"` // well behind the median worker
	Latency        Latency `json:"latency"`
}
