package counts

import (
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/page"
)

// LocalityOptions bound a job's memory.
type LocalityOptions struct {
	Counts Options
	// Interval is the finest stretch of time that can be queried. The newest Fine intervals are
	// kept one by one, older ones are joined into stretches of up to Coarse and dropped after
	// Kept. There are at most Intervals in all.
	Interval     time.Duration
	Fine         int
	Coarse, Kept time.Duration
	Intervals    int
	// Pending is how many requests can be in flight before the oldest is given up.
	Pending int
	// WindowKeys bounds the uses of keys in a Window; 0 turns windows off.
	WindowKeys int
}

// DefaultLocalityOptions keep an hour, the last five minutes of it in full resolution.
var DefaultLocalityOptions = LocalityOptions{
	Counts:    DefaultOptions,
	Interval:  5 * time.Second,
	Fine:      60,
	Coarse:    35 * time.Second, // six intervals with the gaps between them, since each begins with a message
	Kept:      time.Hour,
	Intervals: 180,
	Pending:   1 << 17,
}

// A Request identifies one half of an exchange: the request of a worker, or, as an answer, what
// comes back, with the same fields.
type Request struct {
	Worker, Server int   // indexes, from 0
	Time           int64 // when it was seen, in nanoseconds since 1970
	App, Customer  int32
	Timestamp      int32
	Push, Pull     bool
	Bytes          uint64 // of keys and values, according to the meta; of a request only
	// AnyServer says, of an answer, that its request may have named another server than answers:
	// a proxy sends BytePS's requests for displaced keys whole to their owners.
	AnyServer bool
}

// Pair is the traffic between a worker and a server.
type Pair struct {
	ToServer uint64 // bytes of whole messages
	ToWorker uint64
	Requests uint64 // without retransmissions
}

// Totals are a job's sums over all its messages.
type Totals struct {
	Bytes      uint64
	LeftHost   uint64 // bytes of messages whose receiver is on another host
	Repeated   uint64 // bytes of messages that PS_RESEND sent again
	Messages   uint64
	Answered   uint64 // requests whose answer was seen
	Unanswered uint64 // requests that were given up
	Unasked    uint64 // answers whose request was not seen
}

// A Locality keeps one job's sums. Its methods may be called from any goroutine.
//
// Invariants: the intervals of ring follow each other without overlap; all and totals include
// what ring has dropped; early holds copies of all batches of the newest interval while
// earlyKeys is at most earlyLimit.
type Locality struct {
	opts  LocalityOptions
	Table *Table

	mu        sync.Mutex // guards the fields below; taken before Table.mu
	totals    Totals
	all       *Interval   // sums over all time, without heat
	ring      []*Interval // oldest first, the older ones coarser; the last one is being filled
	pending   *pending
	seen      *seen
	progress  []progress // by worker
	workers   []worker   // by worker: what it is doing now
	seconds   seconds
	firsts    []uint64   // blocks of the newest grid
	firstKeys uint64     // distinct keys in the table when those were laid out
	batches   int        // number of batches so far
	early     []Batch    // batches of the newest interval, while they are few
	earlyKeys int        // keys in early; above earlyLimit: early is incomplete
	window    *collector // nil: windows are off
}

// earlyLimit bounds the keys in early. They are counted again into better blocks once more of
// the job's keys are known, since the blocks of a new job's first seconds are poor.
const earlyLimit = 1 << 16

// NewLocality returns a job without any traffic.
func NewLocality(opts LocalityOptions) *Locality {
	j := &Locality{
		opts:    opts,
		Table:   New(opts.Counts),
		all:     newInterval(0, nil),
		pending: newPending(opts.Pending),
		seen:    newSeen(),
		firsts:  []uint64{0},
	}
	if opts.WindowKeys > 0 {
		j.window = &collector{limit: opts.WindowKeys}
	}
	return j
}

// Ask records a request and reports whether it is new, or a retransmission. It advances the
// worker's step, and starts measuring latency.
func (j *Locality) Ask(r Request) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.interval(r.Time)
	if !j.seen.noteMessage(r, false) {
		return false
	}
	now.pair(r.Worker, r.Server).Requests++
	j.all.pair(r.Worker, r.Server).Requests++
	// A request that is given up must not keep its worker waiting for ever.
	if worker, given := j.pending.addRequest(r); given {
		j.totals.Unanswered++
		j.noteAnswered(worker, r.Time)
	}
	w := j.worker(r.Worker)
	w.asked = max(w.asked, r.Time)
	if w.waits++; w.waits == 1 {
		w.waitsSince = r.Time
	}
	j.step(now, r)
	return true
}

// noteAnswered records that one request fewer of a worker is in flight. When it was the last,
// the worker's wait ends. The caller holds j.mu.
func (j *Locality) noteAnswered(worker int, at int64) {
	w := j.worker(worker)
	w.answered = max(w.answered, at)
	since := w.waiting()
	// After Restart an answer of the earlier run may still arrive.
	w.waits = max(w.waits-1, 0)
	j.endWait(worker, since, at)
}

// Answer records an answer and reports whether it is new, or a retransmission. An answer whose
// request was not seen is new, too.
func (j *Locality) Answer(r Request) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.interval(r.Time)
	if !j.seen.noteMessage(r, true) {
		return false
	}
	w, ok := j.pending.removeRequest(r)
	if !ok {
		// Its request passed before this agent started, or was lost. There is no latency to
		// count.
		j.totals.Unasked++
		return true
	}
	j.took(now, r, w)
	return true
}

// took records the latency of the request w, which r answers. The caller holds j.mu.
func (j *Locality) took(now *Interval, r Request, w unanswered) {
	j.totals.Answered++
	j.noteAnswered(r.Worker, r.Time)
	took := r.Time - w.asked
	now.took(r.Worker, r.Server, took)
	j.all.took(r.Worker, r.Server, took)
}

// GiveUpBefore gives up the requests of a worker to a server that are older than the one that r
// answers, because their answers may have passed unseen. Call it before Answer or Timed.
func (j *Locality) GiveUpBefore(r Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for range j.pending.giveUpBefore(r) {
		j.totals.Unanswered++
		j.noteAnswered(r.Worker, r.Time)
	}
}

// Timed records the time of an answer that is counted elsewhere, or by a later call of Answer.
// Only the first of the two finds the request in flight.
func (j *Locality) Timed(r Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if w, ok := j.pending.removeRequest(r); ok {
		j.took(j.interval(r.Time), r, w)
	}
}

// addBytes counts bytes in one direction.
func (p *Pair) addBytes(toServer bool, bytes uint64) {
	if toServer {
		p.ToServer += bytes
	} else {
		p.ToWorker += bytes
	}
}

// Moved counts the bytes of a message between a worker and a server. leftHost says that its
// receiver is on another host, repeat that it is a retransmission.
func (j *Locality) Moved(r Request, toServer bool, bytes uint64, leftHost, repeat bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count(bytes, leftHost, repeat)
	j.seconds.at(r.Time).bytes += bytes
	now := j.interval(r.Time)
	for _, in := range []*Interval{now, j.all} {
		in.pair(r.Worker, r.Server).addBytes(toServer, bytes)
		in.count(bytes, leftHost, repeat)
	}
}

// Other counts the bytes of a message to or from the scheduler, or between unknown nodes.
func (j *Locality) Other(at int64, bytes uint64, leftHost bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count(bytes, leftHost, false)
	j.seconds.at(at).bytes += bytes
	j.interval(at).count(bytes, leftHost, false)
	j.all.count(bytes, leftHost, false)
}

// count counts a message in the totals. The caller holds j.mu.
func (j *Locality) count(bytes uint64, leftHost, repeat bool) {
	j.totals.Messages++
	j.totals.Bytes += bytes
	if leftHost {
		j.totals.LeftHost += bytes
	}
	if repeat {
		j.totals.Repeated += bytes
	}
}

// Use counts the keys of a request or an answer, seen at the time at. The batch is copied where
// it is kept.
func (j *Locality) Use(at int64, b Batch) {
	if len(b.Keys) == 0 && b.Run.N == 0 {
		return
	}
	// Before the lock: the table has its own, and counting may take long.
	j.Table.Add(b)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.window != nil {
		j.window.addBatch(at, j.begun(b.Worker), &b)
	}
	// Opened first, so that regrid counts again into the interval of this batch.
	j.interval(at)
	// Often while the job is new, then every 4096 batches: regrid counts what the table has put
	// off, which is expensive.
	if j.batches++; j.batches&(j.batches-1) == 0 || j.batches%4096 == 0 {
		j.regrid(at)
	}
	b.AddTo(&j.interval(at).Heat)
	if j.earlyKeys += len(b.Keys) + 1; j.earlyKeys <= earlyLimit {
		// The caller reuses its buffers.
		b.Keys, b.Lens = slices.Clone(b.Keys), slices.Clone(b.Lens)
		j.early = append(j.early, b)
	}
}

// begun returns the number of steps that a worker has begun. The caller holds j.mu.
func (j *Locality) begun(worker int) uint64 {
	if worker >= len(j.all.Steps) {
		return 0
	}
	return j.all.Steps[worker]
}

// regrid lays out new blocks for the heatmap once the table knows a quarter more keys than at
// the last layout. The newest interval is counted again into the new blocks if its batches are
// all kept; otherwise a new interval begins, since counts cannot be moved to finer blocks. The
// caller holds j.mu.
func (j *Locality) regrid(at int64) {
	size := j.Table.Size()
	if size.Keys < j.firstKeys+j.firstKeys/4+1 {
		return
	}
	// The more workers, the fewer blocks: a grid is a matrix of both, and the ring has many of
	// them.
	const cells = 32 << 10 // of one interval
	firsts := j.Table.Firsts(min(max(cells/max(size.Workers, 1), 16), 256))
	j.firstKeys = size.Keys
	j.firsts = firsts
	if j.earlyKeys > earlyLimit {
		j.openInterval(at)
		return
	}
	// Counting the kept batches again gives the same sums in better blocks.
	now := j.ring[len(j.ring)-1]
	now.Heat = page.Grid{Firsts: firsts}
	for _, b := range j.early {
		b.AddTo(&now.Heat)
	}
}

// interval returns the interval that is being filled, opening a new one if the newest is full.
// Messages that arrive late count in the newest. The caller holds j.mu.
func (j *Locality) interval(at int64) *Interval {
	if len(j.ring) > 0 {
		last := j.ring[len(j.ring)-1]
		// Times come from several connections and may go back a little.
		if at < last.Start+int64(j.opts.Interval) {
			last.End = max(last.End, at)
			return last
		}
	}
	j.openInterval(at)
	return j.ring[len(j.ring)-1]
}

// openInterval appends an empty interval. The caller holds j.mu.
func (j *Locality) openInterval(at int64) {
	j.thin(at)
	j.ring = append(j.ring, newInterval(at, j.firsts))
	j.early, j.earlyKeys = nil, 0
	if j.all.Start == 0 {
		j.all.Start = at
	}
}

// Totals returns the sums over all messages.
func (j *Locality) Totals() Totals {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.totals
}

// Restart prepares for the next run of the job: its nodes have started over and number their
// requests from 0. Requests in flight, the retransmission windows and the workers' state are
// forgotten, while sums go on. The window of keys starts over, because a key that only the
// earlier run used may be unknown to the servers now and must not be moved.
func (j *Locality) Restart() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dropWindow()
	j.seen, j.pending = newSeen(), newPending(j.opts.Pending)
	clear(j.progress)
	clear(j.workers)
}
