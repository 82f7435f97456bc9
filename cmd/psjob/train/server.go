// Package train is what psjob's nodes do: servers keep parameters and answer, workers
// train a model, count or measure, and report. It is built on package kv and has no
// flags of its own; cmd/psjob reads those.
//
// A node's life is the same whatever it does: it registers (van.Start), waits at a
// barrier of all nodes, does its work, waits at another one, and stops. The first
// worker configures the servers by a command, before any worker's first key. Sums
// over all workers go by commands to the first server, as there is no connection
// between workers.
//
// # Workloads
//
// Besides models there are workloads that know what every value must be, so that
// anything on the way that loses, repeats, reorders or changes a message is found
// out:
//
//   - count pushes whole numbers to keys that a distribution prefers. Sums of whole
//     numbers are exact in any order, below 2^24, and every worker can compute those of
//     all (count.go). Its keys, their popularity and its changes are what placement is
//     tested with.
//   - mix uses several apps and customers at once, requests with lengths and
//     without, pushes in flight together, and commands (mix.go).
//   - rows pulls rows and pushes gradients for them, and tolerates exactly what
//     thresholded activations leave out (rows.go).
//   - dense has all workers pull the same model and compares every bit
//     (dense.go): for values that are sent once to several workers of a host.
//   - bench measures pushes and pulls of scalar keys (bench.go).
package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/cmd/psjob/van"
)

// Commands from workers to servers. The numbers are such that no program of PS-lite's
// uses them by accident.
const (
	headConfigure int32 = 0x707300 + iota // body: kv.StoreSettings; before the first key
	headTally                             // body: a share; the server adds it up
	headTotal                             // body: a share's name; the answer is what was added up
)

// configured is the answer to headConfigure, which distinguishes psjob's servers from
// others.
const configured = "configured"

// share is one worker's part of a sum over all workers.
type share struct {
	Name  string      `json:"name"`
	Tally model.Tally `json:"tally"`
	Most  int         `json:"most"`  // the total has the largest of all workers'
	Count int         `json:"count"` // of a total: how many workers have added to it
}

// handler is the server's side of the job. One goroutine calls it.
type handler struct {
	store  *kv.Store
	totals map[string]share
	pushes int
	pulls  int
}

// maxTotals bounds how many different sums a server keeps.
const maxTotals = 1024

// Push implements [kv.Handler].
func (h *handler) Push(head int32, keys []uint64, vals []float32, lens []int32) error {
	h.pushes++
	return h.store.Push(head, keys, vals, lens)
}

// Pull implements [kv.Handler].
func (h *handler) Pull(head int32, keys []uint64, lens []int32, dst []float32) ([]float32, error) {
	h.pulls++
	return h.store.Pull(head, keys, lens, dst)
}

// Command implements [kv.Handler]. A command that is not psjob's is answered with an
// empty body, as PS-lite's server does.
func (h *handler) Command(c kv.Command) ([]byte, error) {
	switch c.Head {
	case headConfigure:
		// An error ends the server: a job with wrong settings must not go on.
		return []byte(configured), h.configure(c.Body)
	case headTally:
		var s share
		if err := json.Unmarshal(c.Body, &s); err != nil {
			return nil, fmt.Errorf("a tally: %w", err)
		}
		total, known := h.totals[s.Name]
		if !known && len(h.totals) >= maxTotals {
			return nil, fmt.Errorf("more than %d different tallies", maxTotals)
		}
		total.Name = s.Name
		total.Tally.Add(s.Tally)
		total.Most = max(total.Most, s.Most)
		total.Count++
		h.totals[s.Name] = total
		return nil, nil
	case headTotal:
		// A name to which nobody has added has a total of zero, which its count
		// shows.
		return json.Marshal(h.totals[string(c.Body)])
	}
	return nil, nil
}

// configure replaces the store, which must still be empty.
func (h *handler) configure(body []byte) error {
	var s kv.StoreSettings
	if err := json.Unmarshal(body, &s); err != nil {
		return fmt.Errorf("the job's settings: %w", err)
	}
	// The store is replaced as a whole, so nothing may be in it yet.
	if h.store.Len() > 0 {
		return errors.New("job settings received after the first keys: a worker pushed before the first worker configured the servers")
	}
	fresh, err := kv.NewStore(s)
	if err != nil {
		return fmt.Errorf("the job's settings: %w", err)
	}
	h.store = fresh
	return nil
}

// ServerReport is what a server reports at its end.
type ServerReport struct {
	Role       string         `json:"role"`
	Rank       int            `json:"rank"`
	Keys       int            `json:"keys"`
	Pushes     int            `json:"pushes"`
	Pulls      int            `json:"pulls"`
	Digest     string         `json:"digest"` // of all keys and values, in hexadecimal
	Statistics van.Statistics `json:"statistics"`
}

// Serve is a server's life, from registering to the end of the job. Until a worker
// configures it, pushes are added, which is what PS-lite's example server does.
func Serve(ctx context.Context, c van.Config) (ServerReport, error) {
	v, err := van.Start(ctx, c)
	if err != nil {
		return ServerReport{}, err
	}
	st, err := kv.NewStore(kv.StoreSettings{Rule: "add"})
	if err != nil {
		return ServerReport{}, errors.Join(err, v.Stop(ctx))
	}
	h := &handler{store: st, totals: make(map[string]share)}
	if _, err := kv.NewServer(v, 0, h); err != nil {
		return ServerReport{}, errors.Join(err, v.Stop(ctx))
	}
	if err := serveMix(v); err != nil {
		return ServerReport{}, errors.Join(err, v.Stop(ctx))
	}
	report := ServerReport{Role: "server", Rank: v.Rank()}
	// All requests come from other goroutines. The store may be read after live, when
	// the van has stopped.
	err = live(ctx, v, nil)
	if err == nil {
		report.Digest = h.store.Digest()
		report.Keys, report.Pushes, report.Pulls = h.store.Len(), h.pushes, h.pulls
	}
	report.Statistics = v.Statistics()
	return report, err
}

// Schedule is the scheduler's life: between the two barriers its van does all that it
// has to do.
func Schedule(ctx context.Context, c van.Config) error {
	v, err := van.Start(ctx, c)
	if err != nil {
		return err
	}
	return live(ctx, v, nil)
}

// live waits for all nodes to start, does its work, and waits for all to end. The
// wait for the end takes as long as the job: it has no bound of its own, but ends
// with the van.
func live(ctx context.Context, v *van.Van, work func(context.Context) error) error {
	var err error
	if !v.Recovered() { // the others have passed it
		err = v.Barrier(ctx, van.Everyone)
	}
	if err == nil && work != nil {
		err = work(ctx)
	}
	if err == nil {
		err = v.AwaitEnd(ctx)
	}
	return firstCause(v, err, v.Stop(ctx))
}

// firstCause prefers the error that ended the van to those that it caused: all waits
// fail when the van does.
func firstCause(v *van.Van, err, stopped error) error {
	if stopped != nil {
		return stopped
	}
	return err
}
