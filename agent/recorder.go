package agent

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/agent/recording"
)

// Bounds of what waits to be written: uses, and their keys in all.
const (
	waitingUses = 4096
	waitingKeys = 8 << 20
)

// Recorder takes uses of keys from an agent and writes them down elsewhere than
// where they are read. What comes faster than it can be written is dropped and
// counted.
type Recorder struct {
	jobs    []string // to record; empty: all
	queue   chan recording.Use
	keys    atomic.Int64 // of the uses in the queue
	dropped atomic.Uint64
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
	use := recording.Use{
		Job: job, Worker: u.Worker.Name(), Server: u.Server.Name(), UnixNanos: u.Request.Time,
		App: u.Request.App, Customer: u.Request.Customer, Timestamp: u.Request.Timestamp,
		Push: u.Request.Push, Pull: u.Request.Pull, Answer: u.Answer,
		Keys: slices.Clone(u.Keys), Bytes: u.Bytes, Lens: slices.Clone(u.Lens), OneIn: u.OneIn,
	}
	select {
	case r.queue <- use:
		r.keys.Add(int64(len(use.Keys)))
	default:
		r.dropped.Add(1)
	}
}

// Run writes until ctx ends, then what still waits, and ends the recording.
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
	for failed == nil && len(r.queue) > 0 {
		u := <-r.queue
		write(&u)
	}
	totals, err := w.Close(time.Now().UnixNano(), r.dropped.Load())
	if failed != nil {
		err = failed
	}
	return totals, err
}
