package counts

import (
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/page"
)

// LocalityOptions bound a job's memory.
type LocalityOptions struct {
	Counts Options
	// Interval is the finest stretch of time that can be asked for. The newest Fine
	// of them are kept one by one, older ones are joined into stretches of up to
	// Coarse, and forgotten after Kept. There are at most Intervals in all.
	Interval     time.Duration
	Fine         int
	Coarse, Kept time.Duration
	Intervals    int
	// Pending is how many requests may wait for their answers.
	Pending int
	// WindowKeys is how many uses of keys a Window has at most; 0: there are
	// none.
	WindowKeys int
	// Slow, where not nil, is called with each request whose answer took SlowAfter
	// or longer. It is called with the job's lock held, and must not block.
	Slow      func(Slow)
	SlowAfter time.Duration
}

// DefaultLocalityOptions keep an hour, the last five minutes of it finely.
var DefaultLocalityOptions = LocalityOptions{
	Counts:    DefaultOptions,
	Interval:  5 * time.Second,
	Fine:      60,
	Coarse:    35 * time.Second, // of six, which begin with a message each
	Kept:      time.Hour,
	Intervals: 180,
	Pending:   1 << 17,
}

// A Request is the half of an exchange that a worker sends, or, as an answer,
// the half that comes back.
type Request struct {
	Worker, Server int   // from 0
	Time           int64 // when it was seen, in nanoseconds since 1970
	App, Customer  int32
	Timestamp      int32
	Push, Pull     bool
	Bytes          uint64 // of a request's keys and values, as far as its meta says
}

// Slow is a request whose answer took long. Times are nanoseconds since 1970.
type Slow struct {
	Worker, Server  int
	Asked, Answered int64
	Push, Pull      bool
	Keys, Bytes     uint64 // of the request; 0 keys: not known
}

// Pair is what passed between a worker and a server.
type Pair struct {
	ToServer uint64 // bytes of whole messages
	ToWorker uint64
	Requests uint64 // repeats not counted
}

// Totals are a job's sums over all its messages.
type Totals struct {
	Bytes      uint64
	LeftHost   uint64 // bytes of messages whose receiver is on another host
	Repeated   uint64 // bytes of messages that were sent again by PS_RESEND
	Messages   uint64
	Answered   uint64 // requests whose answer was seen
	Unanswered uint64 // requests given up: too many waited
	Unasked    uint64 // answers whose request was not seen
}

// A Locality keeps one job's sums. Its methods may be called from any goroutine.
//
// Invariant: the intervals of ring follow each other; all and totals count what ring
// has forgotten too.
type Locality struct {
	opts  LocalityOptions
	Table *Table

	mu        sync.Mutex // guards the rest; acquired before the table's
	totals    Totals
	all       *Interval
	ring      []*Interval // oldest first, older ones coarser; the last one is being filled
	pending   *pending
	seen      *seen
	progress  []progress // by worker
	workers   []worker   // by number: what they are doing
	seconds   seconds
	firsts    []uint64 // blocks of the newest grid
	firstKeys uint64   // keys that the table knew when they were laid down
	batches   int
	early     []Batch    // of the newest interval, copies, while they are few
	earlyKeys int        // more than earlyLimit: they are not kept any more
	window    *collector // nil: not wanted
}

// earlyLimit is how many keys of an interval's batches are kept, so that better
// blocks can be laid down for it once the job's keys are known.
const earlyLimit = 1 << 16

// NewLocality returns an empty job.
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

// Ask notes a request and reports whether it is new: false for a repeat of one
// that was seen before.
func (j *Locality) Ask(r Request) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.interval(r.Time)
	if !j.seen.noteMessage(r, false) {
		return false
	}
	now.pair(r.Worker, r.Server).Requests++
	j.all.pair(r.Worker, r.Server).Requests++
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

// noteAnswered notes that one request less of a worker waits.
func (j *Locality) noteAnswered(worker int, at int64) {
	w := j.worker(worker)
	w.answered = max(w.answered, at)
	since := w.waiting()
	w.waits = max(w.waits-1, 0)
	j.endWait(worker, since, at)
}

// Answer notes an answer and reports whether it is new.
func (j *Locality) Answer(r Request) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.interval(r.Time)
	if !j.seen.noteMessage(r, true) {
		return false
	}
	w, ok := j.pending.removeRequest(r)
	if !ok {
		j.totals.Unasked++
		return true
	}
	j.took(now, r, w)
	return true
}

// took notes how long a request waited for its answer.
func (j *Locality) took(now *Interval, r Request, w unanswered) {
	j.totals.Answered++
	j.noteAnswered(r.Worker, r.Time)
	took := r.Time - w.asked
	now.took(r.Worker, r.Server, took)
	j.all.took(r.Worker, r.Server, took)
	if j.opts.Slow != nil && took >= int64(j.opts.SlowAfter) {
		j.opts.Slow(Slow{Worker: r.Worker, Server: r.Server, Asked: w.asked, Answered: r.Time, Push: r.Push, Pull: r.Pull, Keys: w.keys, Bytes: w.bytes})
	}
}

// GiveUpBefore gives up the requests of a worker to a server that were asked before
// one that is answered now: their answers may have passed unseen. It is to be called
// before that answer is noted.
func (j *Locality) GiveUpBefore(r Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for range j.pending.giveUpBefore(r) {
		j.totals.Unanswered++
		j.noteAnswered(r.Worker, r.Time)
	}
}

// Timed notes an answer of which nothing but its time is known, and that may be
// noted by Answer as well: it ends the wait of its request, if that waits.
func (j *Locality) Timed(r Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if w, ok := j.pending.removeRequest(r); ok {
		j.took(j.interval(r.Time), r, w)
	}
}

// Moved notes the bytes of a message between a worker and a server.
func (j *Locality) Moved(r Request, toServer bool, bytes uint64, leftHost, repeat bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count(bytes, leftHost, repeat)
	j.seconds.at(r.Time).bytes += bytes
	now := j.interval(r.Time)
	for _, in := range []*Interval{now, j.all} {
		p := in.pair(r.Worker, r.Server)
		if toServer {
			p.ToServer += bytes
		} else {
			p.ToWorker += bytes
		}
		in.count(bytes, leftHost, repeat)
	}
}

// Other notes the bytes of a message to or from the scheduler, or between
// nodes that are not known yet.
func (j *Locality) Other(at int64, bytes uint64, leftHost bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count(bytes, leftHost, false)
	j.seconds.at(at).bytes += bytes
	j.interval(at).count(bytes, leftHost, false)
	j.all.count(bytes, leftHost, false)
}

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

// Use counts the keys of a request or answer seen at the given time.
func (j *Locality) Use(at int64, b Batch) {
	if len(b.Keys) == 0 && b.Run.N == 0 {
		return
	}
	j.Table.Add(b)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.window != nil {
		j.window.addBatch(at, j.begun(b.Worker), &b)
	}
	j.interval(at)
	if j.batches++; j.batches&(j.batches-1) == 0 || j.batches%4096 == 0 {
		j.regrid(at)
	}
	b.AddTo(&j.interval(at).Heat)
	if j.earlyKeys += len(b.Keys) + 1; j.earlyKeys <= earlyLimit {
		b.Keys, b.Lens = slices.Clone(b.Keys), slices.Clone(b.Lens)
		j.early = append(j.early, b)
	}
}

// begun returns how many steps a worker has begun.
func (j *Locality) begun(worker int) uint64 {
	if worker >= len(j.all.Steps) {
		return 0
	}
	return j.all.Steps[worker]
}

// regrid lays down new blocks when the table has come to know many more keys:
// for the newest interval, or, if it holds too much already, for a new one.
func (j *Locality) regrid(at int64) {
	size := j.Table.Size()
	if size.Keys < j.firstKeys+j.firstKeys/4+1 {
		return
	}
	const cells = 32 << 10 // of one interval
	firsts := j.Table.Firsts(min(max(cells/max(size.Workers, 1), 16), 256))
	j.firstKeys = size.Keys
	j.firsts = firsts
	if j.earlyKeys > earlyLimit {
		j.openInterval(at)
		return
	}
	now := j.ring[len(j.ring)-1]
	now.Heat = page.Grid{Firsts: firsts}
	for _, b := range j.early {
		b.AddTo(&now.Heat)
	}
}

// interval returns the one that is being filled at the given time.
func (j *Locality) interval(at int64) *Interval {
	if len(j.ring) > 0 {
		last := j.ring[len(j.ring)-1]
		if at < last.Start+int64(j.opts.Interval) {
			last.End = max(last.End, at)
			return last
		}
	}
	j.openInterval(at)
	return j.ring[len(j.ring)-1]
}

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

// Restart forgets which requests were seen and which wait: the job's nodes
// have started over and number their requests from 0 again. The window, too, is
// only of what they use: a key that the run before used may be one that no server
// knows now, and must not be moved.
func (j *Locality) Restart() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dropWindow()
	j.seen, j.pending = newSeen(), newPending(j.opts.Pending)
	clear(j.progress)
	clear(j.workers)
}
