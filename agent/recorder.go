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

// Bounds of what waits to be written: uses, and their keys in all. Half as much at
// most waits for the names of nodes, and no longer than namesTake by the uses' own
// time: those of a recording that begins beside a job are known after some requests.
const (
	waitingUses = 1 << 15
	waitingKeys = 8 << 20
	namesTake   = 10 * time.Second
)

// Recorder takes uses of keys from an agent and writes them down elsewhere than
// where they are read. What comes faster than it can be written is dropped and
// counted.
type Recorder struct {
	jobs    []string // to record; empty: all
	queue   chan recording.Use
	keys    atomic.Int64 // of the uses that wait
	dropped atomic.Uint64

	mu      sync.Mutex // guards the rest
	unnamed []unnamed  // in the order in which they came
	held    int        // their keys
}

// unnamed is a use that waits until it is known what its nodes are called: they would
// be others under their later names.
type unnamed struct {
	recording.Use
	worker, server named
}

// named is a node: observe.Node.
type named interface {
	Name() string
	Ranked() bool // its name is final
}

// NewRecorder returns a recorder of the jobs named, of all if there are none.
func NewRecorder(jobs []string) *Recorder {
	return &Recorder{jobs: jobs, queue: make(chan recording.Use, waitingUses)}
}

// Use is for Options.Uses.
func (r *Recorder) Use(u observe.Use) {
	job := u.Job.Scheduler.String()
	if len(r.jobs) > 0 && !slices.Contains(r.jobs, job) {
		return
	}
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

// recordUse has a use written, once its nodes have their names.
func (r *Recorder) recordUse(u unnamed) {
	r.keys.Add(int64(len(u.Keys)))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held += len(u.Keys)
	r.unnamed = append(r.unnamed, u)
	named := 0 // of the first uses
	r.name(func(first *unnamed) bool {
		named++
		return first.worker.Ranked() && first.server.Ranked() || u.UnixNanos-first.UnixNanos > int64(namesTake) ||
			len(r.unnamed)-named >= waitingUses/2 || r.held > waitingKeys/2
	})
}

// name gives those uses to be written that wait for no name any more, as is asked of
// the first of them. The caller holds r.mu, and nodes do not change meanwhile.
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
	clear(r.unnamed[:n]) // let their keys go
	r.unnamed = r.unnamed[n:]
}

// Run writes until ctx ends, then what still waits, and ends the recording. No use
// comes any more when ctx has ended.
func (r *Recorder) Run(ctx context.Context, w *recording.Writer) (recording.Totals, error) {
	flush := time.NewTicker(time.Second) // a killed recorder loses a second at most
	defer flush.Stop()
	var failed error
	write := func(u *recording.Use) {
		r.keys.Add(-int64(len(u.Keys)))
		if err := w.Add(u); err != nil && failed == nil {
			failed = err
		}
	}
	for failed == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case u := <-r.queue:
			write(&u)
		case <-flush.C:
			failed = w.Flush()
		}
	}
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
