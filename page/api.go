package page

import (
	"slices"
	"strconv"
	"time"

	"github.com/psidecar/psidecar/planner/api/measure"
)

// A Key is a parameter's key. As JSON it is a number; since keys go up to
// 2^64-1 and JavaScript is exact to 2^53 only, every type that holds keys
// spells them out as text as well.
type Key uint64

// Text returns the key in decimal.
func (k Key) Text() string { return strconv.FormatUint(uint64(k), 10) }

// A Range is a stretch of time. The zero value of From and To means all that
// is known.
type Range struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

// Jobs answers /api/v1/jobs.
type Jobs struct {
	Jobs []Job `json:"jobs"`
}

// A Job is one training job as this host sees it.
type Job struct {
	Name string `json:"job"` // host:port of its scheduler, which tells jobs that run apart
	// Called is its name, common to its runs, empty where it has none; CalledFrom is the
	// source: owner (of its pods), environment or annotation. Remarks list the owner's
	// wishes that are not followed, with the reason, and traffic that is not seen.
	Called     string   `json:"name,omitempty"`
	CalledFrom string   `json:"name_from,omitempty"`
	Remarks    []string `json:"remarks,omitempty"`

	Dialect   string    `json:"dialect"` // of its messages: dmlc, dmlc-2018, dmlc-2017, byteps; empty before the first
	Servers   int       `json:"servers"` // as the job was configured; 0 unknown
	Workers   int       `json:"workers"` // likewise
	FirstSeen time.Time `json:"first_seen"`
	LastSeen  time.Time `json:"last_seen"` // of its last message
	Nodes     []Node    `json:"nodes"`

	Connections Connections `json:"connections"`

	Accesses       uint64   `json:"accesses"`                // pulls and pushes, each key of each request
	DistinctKeys   uint64   `json:"distinct_keys"`           // estimate where Exact is false
	KeysAtLeast    bool     `json:"keys_at_least,omitempty"` // the planner's: DistinctKeys or more, since hosts' keys overlap
	Exact          bool     `json:"exact"`                   // every key is counted one by one and no request was left out
	SampledOneIn   uint32   `json:"sampled_one_in"`          // 1: all requests' keys are looked at
	Bytes          uint64   `json:"bytes"`                   // of all messages between its nodes
	LeftHostBytes  uint64   `json:"left_host_bytes"`         // those of them that left this host
	StepsPerSecond float64  `json:"steps_per_second"`        // of the median worker, over the last ten seconds, up to now
	BytesPerSecond float64  `json:"bytes_per_second"`        // likewise, of all messages
	Latency        Latency  `json:"latency"`                 // of all requests
	Stragglers     []string `json:"stragglers"`              // names of workers well behind the others

	State  string    `json:"state"`           // starting, running, stalled or over; empty where that is not known
	Since  time.Time `json:"since,omitzero"`  // when it stopped going on
	Cause  string    `json:"cause,omitempty"` // the node, or the pair of nodes (worker3-server1), because of which
	What   string    `json:"what,omitempty"`  // that in a sentence
	Stalls []Stall   `json:"stalls"`          // nodes, and pairs of nodes, that do not go on as they should, longest first

	Sampling *JobSampling `json:"sampling,omitempty"` // an agent's: how its keys are looked at now

	// Measures says which of psidecar's measures hold for the job, on how many of
	// its connections, and why not; empty where it is over. Of an agent whose proxy
	// is another process: see that one's /api/v1/connections for most of them.
	Measures []measure.Line `json:"measures"`
}

// The states of a job.
const (
	Starting = "starting" // no worker has asked for anything yet
	Running  = "running"
	Stalled  = "stalled" // no worker goes on
	Over     = "over"    // its processes have ended
)

// Kinds of stalls.
const (
	Unanswered = "unanswered" // a request has no answer
	Silent     = "silent"     // a worker asks for nothing, and waits for nobody
	AtBarrier  = "barrier"    // a worker waits at a barrier for workers that do not come
	Late       = "late"       // a server answers, but much later than others, or than it did
	Straggling = "straggling" // the other workers wait for this one
)

// A Stall is a node, or a pair of nodes, that does not go on as it should.
type Stall struct {
	Kind    string    `json:"kind"`         // one of the above
	Who     string    `json:"who"`          // the node that waits, is silent or late
	On      string    `json:"on,omitempty"` // for whom it waits
	Since   time.Time `json:"since"`
	Seconds float64   `json:"seconds"` // since then, when this was written
	Keys    string    `json:"keys,omitempty"`
	Bytes   uint64    `json:"bytes,omitempty"` // of the request
	Why     string    `json:"why,omitempty"`   // what sockets and processes say
	Text    string    `json:"text"`            // all of it in a sentence
}

// JobSampling says how a job's keys are looked at.
type JobSampling struct {
	OneIn        uint32  `json:"one_in"`        // windows of timestamps
	Window       uint32  `json:"window"`        // timestamps; 0: as the agent's
	Requests     uint64  `json:"requests"`      // with keys, so far
	Sampled      uint64  `json:"sampled"`       // of them, those whose keys were looked at
	Estimated    uint64  `json:"estimated"`     // how many requests those that were looked at stand for
	Spread       uint64  `json:"spread"`        // the sum over them of n (n - 1), n being how many each stands for
	CostPercent  float64 `json:"cost_percent"`  // of one core
	AtFloor      bool    `json:"at_floor"`      // sparser it does not get, whatever it takes
	ErrorPercent float64 `json:"error_percent"` // of the count of a key with 500 pulls and 500 pushes: see UsesError
}

// A Node is a scheduler, server or worker of a job.
type Node struct {
	Name      string `json:"name"`                // scheduler, server0, worker3, or worker@address while the rank is unknown
	Role      string `json:"role"`                // scheduler, server, worker
	Rank      int    `json:"rank"`                // -1 unknown
	RankFrom  string `json:"rank_from,omitempty"` // how the rank is known: identity, node table, key range, address order
	Address   string `json:"address,omitempty"`   // where it listens
	Local     bool   `json:"local"`               // it runs on this host
	Host      string `json:"host,omitempty"`      // the planner's: the host that it runs on
	PID       int    `json:"pid,omitempty"`
	Pod       string `json:"pod,omitempty"`       // Kubernetes pod UID, from its cgroup
	PodName   *Pod   `json:"pod_name,omitempty"`  // where an API server has named it
	Container string `json:"container,omitempty"` // container id, from its cgroup
}

// A Pod is what an API server calls a pod.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
}

// Connections counts a job's connections by the state of their parser.
type Connections struct {
	Synced   int    `json:"synced"`
	Unsynced int    `json:"unsynced"`     // older than the agent, frame boundary not found yet
	Missed   uint64 `json:"missed_bytes"` // bytes that passed before it was found
	Unplaced int    `json:"unplaced"`     // synced, but the nodes at its ends are not known yet
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

// HeatmapQuery is what /api/v1/heatmap takes, beside job: blocks (how many at most,
// default 256), first and last (keys, both included), from and to (times; seconds
// since 1970, or negative: seconds before now), measure and by (worker, the
// default, or time: a row for each stretch of time, as many as rows says, of the
// workers that workers names, separated by commas; default: of all).
type HeatmapQuery struct {
	Blocks      int
	First, Last Key
	Range       Range
	Measure     Measure
	Rows        int      // above 0: by time
	Workers     []string // by time: of these; none: of all
}

// Of reports whether what the worker did is to be counted.
func (q *HeatmapQuery) Of(worker string) bool {
	return len(q.Workers) == 0 || slices.Contains(q.Workers, worker)
}

// leastRow is the shortest stretch of time that has a row of its own.
const leastRow = 10 * time.Second

// RowsOf returns the stretches of time from one moment to another, at most n, of
// ten seconds or more.
func RowsOf(from, to time.Time, n int) []Range {
	each := max(to.Sub(from)/time.Duration(n)+1, leastRow)
	var rows []Range
	for at := from; at.Before(to) || len(rows) == 0; at = at.Add(each) {
		rows = append(rows, Range{From: at, To: at.Add(each)})
	}
	return rows
}

// Heatmap answers /api/v1/heatmap: what each worker did in each block of keys.
type Heatmap struct {
	Job     string     `json:"job"`
	Workers []string   `json:"workers"`         // names, a row of counts each
	Times   []Range    `json:"times,omitempty"` // by time: a row each, newest last, in place of Workers
	Blocks  []Block    `json:"blocks"`          // a column each
	Counts  [][]uint64 `json:"counts"`          // [worker][block], of Measure

	Measure      Measure `json:"measure"`
	Range                // what was asked for; absent: since the job was first seen
	Exact        bool    `json:"exact"`          // false: see SampledOneIn
	SampledOneIn uint32  `json:"sampled_one_in"` // the sparsest that counts are scaled up by
	// ErrorPercent is by how much the count of an average cell that is not empty
	// may be wrong for that: see UsesError. 0 where all was looked at.
	ErrorPercent float64 `json:"error_percent"`
	// Finest says that asking for fewer keys or more blocks will not show more
	// detail: each block is one key, or as fine as it was counted.
	Finest bool `json:"finest"`
}

// A Block is a range of keys, both ends included.
type Block struct {
	First     Key    `json:"first"`
	Last      Key    `json:"last"`
	FirstText string `json:"first_text"`
	LastText  string `json:"last_text"`
	Name      string `json:"name,omitempty"`   // what its keys are called (--names): items[0..99]
	Keys      uint64 `json:"keys"`             // distinct ones seen in it
	Folded    bool   `json:"folded,omitempty"` // its sums are exact, its keys are not known one by one
}

// NewBlock returns the block of keys from first to last.
func NewBlock(first, last, keys uint64, folded bool) Block {
	f, l := Key(first), Key(last)
	return Block{First: f, Last: l, FirstText: f.Text(), LastText: l.Text(), Keys: keys, Folded: folded}
}

// A Measure is what a heatmap counts.
type Measure string

// The measures.
const (
	Accesses    Measure = "accesses" // pulls and pushes
	Pulls       Measure = "pulls"
	Pushes      Measure = "pushes"
	Bytes       Measure = "bytes" // of values, both ways
	PulledBytes Measure = "pulled_bytes"
	PushedBytes Measure = "pushed_bytes"
)

// Of returns the measure of what was done.
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

// Traffic answers /api/v1/traffic: bytes of messages between each worker and
// each server, whole, with metas, keys and repeats.
type Traffic struct {
	Job       string     `json:"job"`
	Workers   []string   `json:"workers"`
	Servers   []string   `json:"servers"`
	Range                // what was asked for; absent: since the job was first seen
	ToServers [][]uint64 `json:"to_servers"` // [worker][server] bytes of requests
	ToWorkers [][]uint64 `json:"to_workers"` // [worker][server] bytes of answers
	Requests  [][]uint64 `json:"requests"`   // [worker][server] requests, repeats not counted
	// TotalBytes and LeftHostBytes include messages to and from the scheduler.
	TotalBytes    uint64 `json:"total_bytes"`
	LeftHostBytes uint64 `json:"left_host_bytes"`
	RepeatedBytes uint64 `json:"repeated_bytes"` // of messages that PS_RESEND sent again
}

// Keys answers /api/v1/keys (parameter n: how many of the hottest, default 50).
type Keys struct {
	Job     string      `json:"job"`
	Workers []string    `json:"workers"`
	Hottest []HotKey    `json:"hottest"`
	Skew    []SkewPoint `json:"skew"` // rising; the last point has all keys and accesses
	Sketch  Sketch      `json:"sketch"`
}

// A HotKey is one of the most used keys.
type HotKey struct {
	Key       Key      `json:"key"`
	Text      string   `json:"key_text"`
	Name      string   `json:"name,omitempty"` // what it is called (--names): items[12]
	Accesses  uint64   `json:"accesses"`       // all of them, the estimated ones included
	Pulls     uint64   `json:"pulls"`
	Pushes    uint64   `json:"pushes"`
	Bytes     uint64   `json:"bytes"`               // of its values, both ways
	Estimated uint64   `json:"estimated,omitempty"` // accesses that are an estimate, at most Sketch.Bound too high
	Error     uint64   `json:"error,omitempty"`     // by how much accesses may be wrong because requests are sampled: see UsesError
	Server    string   `json:"server,omitempty"`    // its home
	Workers   []uint64 `json:"workers"`             // accesses by worker
}

// A SkewPoint says how many accesses fall to the hottest keys.
type SkewPoint struct {
	Keys     uint64 `json:"keys"`
	Accesses uint64 `json:"accesses"`
}

// Sketch says how well a job's keys are counted.
type Sketch struct {
	Job          string  `json:"job"`
	Exact        bool    `json:"exact"` // all keys one by one
	DistinctKeys uint64  `json:"distinct_keys"`
	ExactKeys    uint64  `json:"exact_keys"`    // counted one by one
	Blocks       int     `json:"blocks"`        // whose sums are exact
	FoldedBlocks int     `json:"folded_blocks"` // of them, those whose keys are not all counted one by one
	MemoryBytes  int     `json:"memory_bytes"`
	AtLeast      bool    `json:"at_least,omitempty"` // the planner's: DistinctKeys or more, and the skew at least as strong
	Bound        uint64  `json:"bound"`              // an estimate is at most this too high, never too low,
	Percent      float64 `json:"percent"`            // for at least this share of the keys
}

// Servers answers /api/v1/servers: how busy servers and workers are.
type Servers struct {
	Job     string       `json:"job"`
	Range                // what was asked for; absent: since the job was first seen
	Servers []ServerLoad `json:"servers"`
	Workers []WorkerLoad `json:"workers"`
}

// ServerLoad is what one server was asked and answered.
type ServerLoad struct {
	Name     string  `json:"name"`
	Requests uint64  `json:"requests"`
	BytesIn  uint64  `json:"bytes_in"`
	BytesOut uint64  `json:"bytes_out"`
	Share    float64 `json:"share"` // of all servers' bytes
	Latency  Latency `json:"latency"`
}

// WorkerLoad is how one worker gets on.
type WorkerLoad struct {
	Name           string  `json:"name"`
	Requests       uint64  `json:"requests"`
	BytesIn        uint64  `json:"bytes_in"`
	BytesOut       uint64  `json:"bytes_out"`
	Timestamp      int64   `json:"timestamp"` // of its last request
	Steps          uint64  `json:"steps"`     // since it was first seen, or in the stretch of time asked for where that is known
	StepsPerSecond float64 `json:"steps_per_second"`
	Straggler      bool    `json:"straggler"` // well behind the median worker
	Latency        Latency `json:"latency"`
}
