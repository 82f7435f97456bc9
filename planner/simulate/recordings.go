// This file tries strategies on recordings of real jobs: it turns what psidecar record has written
// on a job's hosts into requests.
//
// The recordings are read twice. The first reading (survey.go) finds the job's nodes, their
// machines, and the sizes of values, which a request to pull does not have. The second simulates.
// It merges the recordings by time, so the hosts' clocks should agree to within a step.

package simulate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/planner/dynamic"
)

// RecordedOptions configure a simulation of recordings.
type RecordedOptions struct {
	Job        string // empty: the only one
	EpochSteps int
	KeyBytes   int
	Strategies []string
	Batches    int
	Horizon    float64
	Seed       uint64
	// See [Options].
	Planned bool
	// Wait is how long a push may wait for the others of its host; see [Aggregation].
	Wait time.Duration
}

// Strategies returns the names that Options and RecordedOptions accept.
func Strategies() []string { return dynamic.Names() }

// Check returns what is wrong with the options, in terms of the flags of psidecar simulate.
func (o *RecordedOptions) Check() error {
	if o.EpochSteps < 1 || o.KeyBytes < 1 || o.Batches < 1 || o.Horizon <= 0 {
		return errors.New("--epoch-steps, --key-bytes, --batches and --horizon must be above 0")
	}
	if o.Wait < 0 {
		return fmt.Errorf("--aggregate-wait %v: want 0 or more", o.Wait)
	}
	for _, s := range o.Strategies {
		if _, err := dynamic.New(s, dynamic.Options{Machines: 1}); err != nil {
			return fmt.Errorf("--strategies: %w", err)
		}
	}
	return nil
}

// A Report is what psidecar simulate --json prints.
type Report struct {
	Job        string   `json:"job"`
	Machines   int      `json:"machines"`
	Workers    int      `json:"workers"`
	Servers    int      `json:"servers"`
	Keys       int      `json:"keys"`
	Requests   uint64   `json:"requests"`
	EpochSteps int      `json:"epoch_steps"`
	Complete   bool     `json:"complete"` // false: a recording was cut off
	Results    []Result `json:"results"`

	Aggregation *Aggregation `json:"aggregation"`
}

// RunRecorded simulates a job of which there are recordings, from one or more hosts. A recording
// that was cut off is used as far as it goes.
func RunRecorded(paths []string, o RecordedOptions) (*Report, error) {
	r := &Report{EpochSteps: o.EpochSteps, Complete: true}
	s := newSurvey(o.Job)
	for _, path := range paths {
		header, complete, err := read(path, s.look)
		if err != nil {
			return nil, err
		}
		r.Complete = r.Complete && complete
		// The survey learns who runs on a host when the recording made there has been read.
		s.host(header.Host)
	}
	m, err := s.machines()
	if err != nil {
		return nil, err
	}
	r.Job, r.Machines, r.Workers, r.Servers = s.job, m.count, len(m.worker), len(m.server)
	options := Options{
		Machine: m.worker, Machines: m.count, EpochSteps: o.EpochSteps, KeyBytes: o.KeyBytes, Strategies: o.Strategies, Batches: o.Batches, Planned: o.Planned,
		Home: func(key uint64) int32 { return int32(m.server[plan.HomeOf(key, len(m.server))]) },
	}
	options.Dynamic.Locality.Horizon, options.Dynamic.Seed = o.Horizon, o.Seed
	sim, err := New(options)
	if err != nil {
		return nil, err
	}
	// Steps are counted here, from timestamps: a request says to which call it belongs, not to
	// which step.
	clocks, sums := make([]clock, len(m.worker)), newAggregating(m, o.KeyBytes, o.Wait)
	err = merge(paths, func(u *recording.Use) error {
		// Requests that are neither a push nor a pull are control messages of the application.
		if u.Job != s.job || !u.Push && !u.Pull {
			return nil
		}
		worker, ok := s.workers[u.Worker]
		server, err := serverRank(u.Server)
		if err != nil || u.Answer && !ok { // an answer to a request that was not recorded
			return err
		}
		if u.Answer {
			sums.take(u, worker, server, 0)
			return nil
		}
		r.Requests++
		request := Request{Worker: worker, Step: clocks[worker].step(u), Push: u.Push, Pull: u.Pull, Keys: u.Keys}
		request.Sizes, request.Size = s.sizes(u.Keys)
		sums.take(u, worker, server, request.valueBytes())
		return sim.Add(&request)
	})
	if err != nil {
		return nil, err
	}
	r.Results, r.Keys, r.Aggregation = sim.Results(), sim.Keys(), sums.result()
	return r, nil
}

// read reads one recording. complete is false if it was cut off, as by a full disk or a kill.
func read(path string, each func(*recording.Use) error) (h recording.Header, complete bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return h, false, fmt.Errorf("opening a recording: %w", err)
	}
	defer f.Close()
	h, _, err = recording.Read(f, each)
	switch {
	case errors.Is(err, recording.ErrCutOff):
		return h, false, nil
	case err != nil:
		return h, false, fmt.Errorf("%s: %w", path, err)
	}
	return h, true, nil
}

// valueBytes returns the bytes of all values.
func (r *Request) valueBytes() float64 {
	if r.Sizes == nil {
		return float64(r.Size) * float64(len(r.Keys))
	}
	sum := 0.0
	for _, size := range r.Sizes {
		sum += float64(size)
	}
	return sum
}

// A clock counts one worker's steps. A round of pulls and the round of pushes that follows it are
// one step, and so is a round of requests that do both.
type clock struct {
	begun     bool
	now       int
	last      int32 // timestamp of the newest request
	push      bool  // it was a push
	app, cust int32
}

// step returns the step that a request belongs to. PS-lite gives all parts of one call the same
// timestamp, and a later call a higher one.
func (c *clock) step(u *recording.Use) int {
	switch {
	case !c.begun:
		c.begun = true
	// Another part of the same call, or one that was recorded late.
	case u.App == c.app && u.Customer == c.cust && u.Timestamp <= c.last:
		return c.now
	case u.Push && !u.Pull && !c.push: // the pushes after the pulls
	default:
		c.now++
	}
	// Customers of one worker count their timestamps separately.
	c.last, c.push, c.app, c.cust = u.Timestamp, u.Push, u.App, u.Customer
	return c.now
}

// merge calls each with the uses of all recordings by time. Each recording is read on a goroutine
// of its own, so decoding them uses several cores.
func merge(paths []string, each func(*recording.Use) error) error {
	if len(paths) == 1 {
		_, _, err := read(paths[0], each)
		return err
	}
	var sources []*source
	for _, path := range paths {
		s := start(path)
		defer s.stop()
		sources = append(sources, s)
	}
	for {
		first := -1
		for i, s := range sources {
			u, err := s.peek()
			if err != nil {
				return err
			}
			// With a handful of hosts a linear search is as good as a heap.
			if u != nil && (first < 0 || u.UnixNanos < sources[first].next.UnixNanos) {
				first = i
			}
		}
		if first < 0 {
			return nil
		}
		u := sources[first].next
		sources[first].next = nil
		if err := each(u); err != nil {
			return err
		}
	}
}

// A source reads a recording on a goroutine of its own, which is at most a channel's length ahead.
type source struct {
	uses  chan *recording.Use
	quit  chan struct{}
	ended chan error
	next  *recording.Use
}

var errStopped = errors.New("nobody reads on")

// start begins to read a recording. stop must be called.
func start(path string) *source {
	s := &source{uses: make(chan *recording.Use, 64), quit: make(chan struct{}), ended: make(chan error, 1)}
	go func() {
		_, _, err := read(path, func(u *recording.Use) error {
			use := *u // its keys are the reader's list, which does not change
			use.Lens = slices.Clone(u.Lens)
			select {
			case s.uses <- &use:
				return nil
			case <-s.quit:
				return errStopped
			}
		})
		s.ended <- err
		close(s.uses)
	}()
	return s
}

// peek returns the next use without consuming it, nil at the end.
func (s *source) peek() (*recording.Use, error) {
	if s.next != nil {
		return s.next, nil
	}
	u, ok := <-s.uses
	if !ok {
		err := <-s.ended
		// A second peek at the end must not block.
		s.ended <- nil
		return nil, err
	}
	s.next = u
	return u, nil
}

// stop ends the reading and waits for the goroutine.
func (s *source) stop() {
	close(s.quit)
	for range s.uses { // until it has ended
	}
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	note := ""
	if !r.Complete {
		note = "; a recording was cut off"
	}
	if _, err := fmt.Fprintf(w, "job %s: %d workers, %d servers, %d machines, %d keys, %d requests, epochs of %d steps%s\n\n",
		r.Job, r.Workers, r.Servers, r.Machines, r.Keys, r.Requests, r.EpochSteps, note); err != nil {
		return err
	}
	if err := Table(w, r.Results); err != nil {
		return err
	}
	return r.Aggregation.Print(w)
}
