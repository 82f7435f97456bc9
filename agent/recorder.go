package agent

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/internal/recording"
)

// Bounds of what waits to be written: uses, and their keys in total. Up to half of that waits
// for the names of nodes, for up to namesTake in the time of the uses: in a recording that
// begins with the job, ranks are known only after some requests.
const (
	waitingUses = 1 << 15
	waitingKeys = 8 << 20
	namesTake   = 10 * time.Second
)

// A Recorder takes uses of keys from an agent and writes them in another goroutine than the one
// that reads the kernel's records. Uses that come faster than they can be written are dropped
// and counted. Use and Run may run at the same time.
//
// A use passes two stages: unnamed, until its nodes have final names, and queue.
type Recorder struct {
	jobs    []string // schedulers of the jobs to record; empty: all
	queue   chan recording.Use
	keys    atomic.Int64  // number of keys in both stages
	dropped atomic.Uint64 // uses

	mu      sync.Mutex // guards the rest
	unnamed []unnamed  // in the order of arrival
	held    int        // number of keys in unnamed
}

// unnamed is a use that waits for the final names of its nodes. Written under another name, a
// node would look like two.
type unnamed struct {
	recording.Use
	worker, server named
}

// named is a node; see observe.Node. Its methods need the observer's lock.
type named interface {
	Name() string
	Ranked() bool // the name is final
}

// NewRecorder returns a recorder of the jobs with these scheduler addresses; of all jobs if
// there are none.
func NewRecorder(jobs []string) *Recorder {
	return &Recorder{jobs: jobs, queue: make(chan recording.Use, waitingUses)}
}

// Use is an Options.Uses. It copies what it keeps, and never blocks on the disk.
func (r *Recorder) Use(u observe.Use) {
	job := u.Job.Scheduler.String()
	if len(r.jobs) > 0 && !slices.Contains(r.jobs, job) {
		return
	}
	// Checked before the keys are copied: a burst must not cost memory before it is dropped.
	if r.keys.Load()+int64(len(u.Keys)) > waitingKeys {
		r.dropped.Add(1)
		return
	}
	r.recordUse(unnamed{recording.Use{
		Job: job, UnixNanos: u.Request.Time,
		App: u.Request.App, Customer: u.Request.Customer, Timestamp: u.Request.Timestamp,
		Push: u.Request.Push, Pull: u.Request.Pull, Answer: u.Answer,
		Keys: slices.Clone(u.Keys), Bytes: u.Bytes, Lens: slices.Clone(u.Lens), OneIn: u.OneIn,
	}, u.Worker, u.Server})
}

// recordUse queues a use, and moves on those at the head whose names are final, or that have
// waited for too long.
func (r *Recorder) recordUse(u unnamed) {
	r.keys.Add(int64(len(u.Keys)))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held += len(u.Keys)
	r.unnamed = append(r.unnamed, u)
	// The number of uses at the head that have been looked at in this call.
	named := 0 // of the first uses
	r.name(func(first *unnamed) bool {
		named++
		return first.worker.Ranked() && first.server.Ranked() || u.UnixNanos-first.UnixNanos > int64(namesTake) ||
			len(r.unnamed)-named >= waitingUses/2 || r.held > waitingKeys/2
	})
}

// name moves uses from unnamed to the queue, as long as ready accepts the first. The order of
// uses is kept. The caller holds r.mu, and nodes must not change meanwhile: it holds the
// observer's lock too, or the agent has ended.
func (r *Recorder) name(ready func(first *unnamed) bool) {
	n := 0
	for ; n < len(r.unnamed) && ready(&r.unnamed[n]); n++ {
		u := &r.unnamed[n]
		u.Worker, u.Server = u.worker.Name(), u.server.Name()
		r.held -= len(u.Keys)
		select {
		case r.queue <- u.Use:
		default:
			r.keys.Add(-int64(len(u.Keys)))
			r.dropped.Add(1)
		}
	}
	clear(r.unnamed[:n]) // for the garbage collector
	r.unnamed = r.unnamed[n:]
}

// Run writes until ctx ends, then writes what still waits, under the names known by then, and
// ends the recording. ctx must end only when no more uses come. It returns the first error of
// writing.
func (r *Recorder) Run(ctx context.Context, w *recording.Writer) (recording.Totals, error) {
	flush := time.NewTicker(time.Second) // a recorder that is killed loses a second at most
	defer flush.Stop()
	var failed error
	write := func(u *recording.Use) {
		r.keys.Add(-int64(len(u.Keys)))
		if err := w.Add(u); err != nil && failed == nil {
			failed = err
		}
	}
	// After a failure the queue fills up and uses are dropped. The agent must not block on it
	// while it ends.
	for failed == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case u := <-r.queue:
			write(&u)
		case <-flush.C:
			failed = w.Flush()
		}
	}
	// The queue is smaller than what may wait for names, so both are emptied in turns.
	for more := true; failed == nil && more; {
		r.mu.Lock()
		r.name(func(*unnamed) bool { return len(r.queue) < cap(r.queue) })
		more = len(r.unnamed) > 0
		r.mu.Unlock()
		for failed == nil && len(r.queue) > 0 {
			u := <-r.queue
			write(&u)
		}
	}
	totals, err := w.Close(time.Now().UnixNano(), r.dropped.Load())
	if failed != nil {
		err = failed
	}
	return totals, err
}
