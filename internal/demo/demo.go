// Package demo shows what psidecar does for a training job on one machine:
// hosts as network namespaces with slow links, a PS-lite job (psjob) of a
// scheduler, a server and a worker a host, and one run of that job for each
// phase, with what it moved and how fast it went.
//
// In come [Options]; out goes a [Result] a phase, as soon as it is measured.
// `psidecar demo` calls it.
package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/planner/dataset"
)

// Options say what the demo shows.
type Options struct {
	Hosts    int    // each with a server and a worker
	Rate     uint64 // of each host's link, bits a second
	Data     string // libsvm text to train on; empty: made from a seed
	Steps    int    // of each worker in each phase
	Batch    int    // samples of a worker's step
	Psjob    string // the job's program
	Psidecar string // the program of agents and planner
	// Page, where not nil, is called with the address of the planner's page before
	// the first phase.
	Page func(url string)
	// Say, where not nil, is called with the demo's progress, every other second at
	// least.
	Say func(text string)
	// Observed is called after the last phase, while agents and planner still
	// run.
	Observed func(ctx context.Context) error
}

// Result is what a phase measured.
type Result struct {
	Phase          string   `json:"phase"`
	StepsPerSecond float64  `json:"steps_per_second"`        // of a worker
	BytesPerStep   float64  `json:"bytes_per_step"`          // TCP payload that left its host, all hosts together
	MaxHostBytes   float64  `json:"max_host_bytes_per_step"` // sent and received by the busiest host
	Loss           *float64 `json:"loss"`                    // of the model after the last step, on all training data
	Accuracy       *float64 `json:"accuracy"`                // likewise, 0 to 1
	// Processor seconds of all hosts together while the job ran: of its processes,
	// in whose calls the kernel's programs run, and of psidecar's.
	JobCPU      float64 `json:"job_cpu_seconds"`
	PsidecarCPU float64 `json:"psidecar_cpu_seconds"`

	Seconds          float64 `json:"-"` // from the start of the job's processes to the end of the last one
	Accesses         uint64  `json:"-"` // pushes and pulls of keys by all workers, as they say
	Home             *Result `json:"-"` // of reroute: the same job with all keys at home
	ObservedByAgents uint64  `json:"-"` // the same as the agents counted it, where there were any
}

// Run makes the hosts, runs the phases in order and calls report after each.
// Everything it made is gone when it returns.
func Run(ctx context.Context, o Options, report func(Result) error) (err error) {
	dir, err := os.MkdirTemp("", "psidecar-demo-")
	if err != nil {
		return fmt.Errorf("making a folder for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.Data == "" {
		if o.Say != nil {
			o.Say("making training data")
		}
		if o.Data, err = generate(dir); err != nil {
			return err
		}
	}
	net, err := hosts.New(hosts.Config{Hosts: o.Hosts, Rate: o.Rate, Pairs: true})
	if err != nil {
		return fmt.Errorf("making %d hosts: %w", o.Hosts, err)
	}
	defer func() { err = errors.Join(err, net.Close()) }()
	s := stage{options: o, net: net, dir: dir}
	s.telling = newTelling(o.Say, s.moved)
	defer s.telling.close()
	defer func() { err = errors.Join(err, s.fleet.stop()) }()
	s.telling.tell("starting a planner")
	if err := s.startPlanner(ctx); err != nil {
		return err
	}
	front, err := s.openPage(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.close()) }()
	if o.Page != nil {
		o.Page(front.url)
	}
	phases := []struct {
		name string
		play func(context.Context) (Result, error)
	}{{"baseline", s.baseline}, {"observe", s.observe}, {"compact", s.compact}, {"placement", s.placement}, {"reroute", s.reroute}, {"threshold", s.threshold}}
	for i, phase := range phases {
		s.telling.announcePhase(i+1, len(phases), phase.name)
		result, err := phase.play(ctx)
		if err != nil {
			return err
		}
		if err := report(result); err != nil {
			return err
		}
	}
	s.telling.endPhase()
	return o.Observed(ctx)
}

// moved returns how many bytes have passed between the hosts.
func (s *stage) moved() (sum uint64, err error) {
	traffic, err := s.net.Traffic()
	for _, row := range traffic {
		for _, t := range row {
			sum += t.Payload
		}
	}
	return sum, err
}

// generate writes a text set that a linear model learns.
func generate(dir string) (string, error) {
	start := time.Now()
	path := filepath.Join(dir, "text.libsvm")
	f, err := os.Create(path)
	if err != nil {
		return "", fmt.Errorf("making the data: %w", err)
	}
	n, err := dataset.WriteLibsvm(f, dataset.SyntheticText(dataset.TextOptions{
		Samples: 12_000, Features: 30_000, Topics: 20, Words: 75, Skew: 1.05, Noise: 0.01, Seed: 1,
	}))
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("making the data: %w", err)
	}
	slog.Debug("made a text set", "samples", n, "path", path, "took", time.Since(start))
	return path, nil
}
