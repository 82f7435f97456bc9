// Package demo shows what psidecar does for a training job on a single machine. It makes hosts
// as network namespaces with slow links, runs a PS-lite job (psjob) with a scheduler and a
// server and a worker on each host, once for each phase, and measures what the job moved and
// how fast it went.
//
// [Run] takes [Options] and reports a [Result] for each phase as soon as it is measured. A
// phase keeps what the previous one turned on. `psidecar demo` uses it through an [Output],
// which prints the results.
//
// The phases are in files of their own: observe.go (agents and planner), compact.go (proxies),
// placement.go (data and keys divided before the run), reroute.go (keys moved during the run)
// and threshold.go (a lossy codec). run.go runs and measures the job, service.go the processes
// of psidecar, telling.go reports progress.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
)

// Options say what the demo shows.
type Options struct {
	Hosts    int    // each with a server and a worker
	Rate     uint64 // bits per second, of each host's link
	Data     string // libsvm text to train on; empty: made from a seed
	Steps    int    // of each worker in each phase
	Batch    int    // samples in a worker's step
	Psjob    string // the job's program
	Psidecar string // the program of agents and planner
	// Page, if not nil, is called with the address of the planner's page before the first
	// phase.
	Page func(url string)
	// Say, if not nil, is called with the demo's progress: with each thing that begins and, if
	// Repeat is set, every other second.
	Say    func(text string)
	Repeat bool
	// Heatmap, if not nil, is called with how workers used keys before and after placement.
	Heatmap func(when string, h page.Heatmap) error
	// Observed is called after the last phase, while agents and planner still run.
	Observed func(ctx context.Context) error

	keyMap string // of psjob and psidecar partition
}

// Check returns a usage error for numbers that make no demo.
func (o *Options) Check() error {
	switch {
	case o.Hosts < 2 || o.Hosts > 16:
		return cli.Usagef("--hosts %d: want 2 to 16", o.Hosts)
	case o.Steps < 1:
		return cli.Usagef("--steps %d: want 1 or more", o.Steps)
	case o.Batch < 1:
		return cli.Usagef("--batch %d: want 1 or more", o.Batch)
	}
	return nil
}

// A Result is what was measured in a phase.
type Result struct {
	Phase          string   `json:"phase"`
	StepsPerSecond float64  `json:"steps_per_second"`        // of a worker
	BytesPerStep   float64  `json:"bytes_per_step"`          // TCP payload that left its host, over all hosts
	MaxHostBytes   float64  `json:"max_host_bytes_per_step"` // sent and received by the busiest host
	Loss           *float64 `json:"loss"`                    // of the final model, on all training data
	Accuracy       *float64 `json:"accuracy"`                // likewise, from 0 to 1
	// Processor seconds on all hosts while the job ran: of its processes, in whose context the
	// BPF programs run, and of psidecar's.
	JobCPU      float64 `json:"job_cpu_seconds"`
	PsidecarCPU float64 `json:"psidecar_cpu_seconds"`

	Seconds          float64 `json:"-"` // from the start of the job's processes to the end of the last one
	Accesses         uint64  `json:"-"` // accesses to keys, as the workers count them
	Home             *Result `json:"-"` // for reroute: the same job with all keys at home
	ObservedByAgents uint64  `json:"-"` // accesses to keys, as the agents counted them
}

// MbitPerCore is the speed of the link that goes with a core of a host by default: a host of 32
// cores has 640 Mbit/s.
const MbitPerCore = 20

// LinkMbit returns the speed of the link of one of n hosts that share this machine's cores.
func LinkMbit(cores, n int) uint64 {
	return max(1, uint64(MbitPerCore*CoresOf(cores, n)))
}

// CoresOf returns which share of the cores one of n hosts has: at most one core, since the
// processes of the demo's job use no more.
func CoresOf(cores, n int) float64 { return min(1, float64(cores)/float64(n)) }

// Run makes the hosts, runs the phases in order, and calls report after each. When it returns,
// everything that it made is gone. It needs root.
func Run(ctx context.Context, o Options, report func(Result) error) (err error) {
	dir, err := os.MkdirTemp("", "psidecar-demo-")
	if err != nil {
		return fmt.Errorf("creating a directory for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }() // deferred first: processes have files there until they end
	o.keyMap = "spread"
	if o.Data == "" {
		if o.Say != nil {
			o.Say("generating training data")
		}
		if err := o.generate(dir); err != nil {
			return err
		}
	}
	// One more for the planner: what agents report is to cost their own links, and not a part of
	// the job twice.
	//
	// Pairs: the bytes per step are read at the switch, where they are the same with and
	// without psidecar. Its own figures would be no evidence.
	net, err := hosts.New(hosts.Config{Hosts: o.Hosts + 1, Rate: o.Rate, Pairs: true})
	if err != nil {
		return fmt.Errorf("making %d hosts: %w", o.Hosts, err)
	}
	defer func() { err = errors.Join(err, net.Close()) }()
	s := stage{options: o, net: net, dir: dir}
	s.telling = newTelling(o.Say, o.Repeat, s.moved)
	defer s.telling.close()
	defer func() { err = errors.Join(err, s.fleet.stop()) }()
	s.telling.tell("starting a planner")
	if err := s.startPlanner(ctx); err != nil {
		return err
	}
	// Once for all phases: the planner is replaced in one of them, and the user's browser stays
	// where it is.
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
	// The last phase is over. What follows is for the user to look at.
	s.telling.endPhase()
	return o.Observed(ctx)
}

// moved returns how many bytes of TCP payload have passed between the hosts.
func (s *stage) moved() (sum uint64, err error) {
	traffic, err := s.net.Traffic()
	for _, row := range traffic {
		for _, t := range row {
			sum += t.Payload
		}
	}
	return sum, err
}
