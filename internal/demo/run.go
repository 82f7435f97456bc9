package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
)

// stage is the state that phases share. Everything runs in one goroutine.
type stage struct {
	options Options
	net     *hosts.Net
	dir     string // for sockets and data
	fleet   fleet
	telling *telling
	data    string   // folder of the shards, once data was divided
	placed  []string // flags by which proxies use the placement
}

// hosts returns the hosts of the job.
func (s *stage) hosts() []*hosts.Host { return s.net.Hosts()[:s.options.Hosts] }

// plannerHost returns the host of the planner, and nothing else.
func (s *stage) plannerHost() *hosts.Host { return s.net.Host(s.options.Hosts) }

// Cgroups of each host: one that is watched and intercepted, and one beside it.
const (
	jobGroup      = "job"
	psidecarGroup = "sidecar"
)

// workerReport is the output of a psjob worker with --json.
type workerReport struct {
	Role           string   `json:"role"`
	Rank           int      `json:"rank"`
	Steps          int      `json:"steps"`
	StepsPerSecond float64  `json:"steps_per_second"`
	Loss           *float64 `json:"loss"`
	Accuracy       *float64 `json:"accuracy"`
	AllWorkers     bool     `json:"all_workers"`
	Pushes         uint64   `json:"pushes"`
	Pulls          uint64   `json:"pulls"`
}

// baseline runs the job as it is.
func (s *stage) baseline(ctx context.Context) (Result, error) { return s.measureJob(ctx, "baseline") }

// measureJob runs the training job once, on divided data if there is any, and measures it.
func (s *stage) measureJob(ctx context.Context, phase string) (Result, error) {
	o := s.options
	// Shards of an earlier phase, if any, take the place of the whole file.
	data := o.Data
	if s.data != "" {
		data = s.data
	}
	// Rows of four values: a weight and three factors.
	return s.runJob(ctx, phase, o.Steps, "--model=fm", "--factors=3", "--data="+data, "--key-map="+o.keyMap, "--steps="+strconv.Itoa(o.Steps), "--batch="+strconv.Itoa(o.Batch))
}

// runJob runs a job with that many steps and measures it. Traffic and processor time are
// differences of counters over the whole run, including its start and end.
func (s *stage) runJob(ctx context.Context, phase string, steps int, args ...string) (Result, error) {
	// Everything psidecar sends counts, too: reports, and connections between proxies. What it
	// costs is part of the result.
	before, err := s.net.Traffic()
	if err != nil {
		return Result{}, err
	}
	// Counters of the groups begin when the hosts are made, not with this run.
	jobCPU, psidecarCPU, err := s.processorTime()
	if err != nil {
		return Result{}, err
	}
	o := s.options
	began := time.Now()
	psjob := append(hosts.Program{o.Psjob, "--json"}, args...)
	running, err := hosts.Job{
		Scheduler: psjob,
		Servers:   hosts.Repeat(o.Hosts, psjob),
		Workers:   hosts.Repeat(o.Hosts, psjob),
		Hosts:     s.hosts(),
	}.Run(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("phase %s: %w", phase, err)
	}
	result := Result{Phase: phase, Seconds: time.Since(began).Seconds()}
	after, err := s.net.Traffic()
	if err != nil {
		return Result{}, err
	}
	if result.JobCPU, result.PsidecarCPU, err = s.processorTime(); err != nil {
		return Result{}, err
	}
	result.JobCPU -= jobCPU
	result.PsidecarCPU -= psidecarCPU
	for _, w := range running.Workers {
		var r workerReport
		if err := json.Unmarshal(w.Stdout.Bytes(), &r); err != nil {
			return Result{}, fmt.Errorf("phase %s: worker %d printed %q instead of its report: %w", phase, w.Index, w.Stdout.Bytes(), err)
		}
		result.addWorker(r, len(running.Workers))
	}
	result.measure(before, after, steps)
	return result, nil
}

// processorTime returns the processor seconds of the jobs' processes and of psidecar's, on all
// hosts since they were made.
func (s *stage) processorTime() (ofJobs, ofPsidecar float64, err error) {
	for _, h := range s.net.Hosts() {
		for group, sum := range map[string]*float64{jobGroup: &ofJobs, psidecarGroup: &ofPsidecar} {
			took, err := h.GroupCPU(group)
			if err != nil {
				return 0, 0, err
			}
			*sum += took.Seconds()
		}
	}
	return ofJobs, ofPsidecar, nil
}

// addWorker adds the report of one of n workers. Only one of them evaluates the model.
func (r *Result) addWorker(w workerReport, n int) {
	r.StepsPerSecond += w.StepsPerSecond / float64(n)
	r.Accesses += w.Pushes + w.Pulls
	if w.AllWorkers && r.Loss == nil {
		r.Loss, r.Accuracy = w.Loss, w.Accuracy
	}
}

// measure derives the bytes per step from counters of the switch.
func (r *Result) measure(before, after [][]hosts.Traffic, steps int) {
	perHost := make([]uint64, len(after))
	var all uint64
	for from := range after {
		for to := range after[from] {
			n := after[from][to].Payload - before[from][to].Payload
			// A byte counts once in the sum, and for both its hosts.
			all += n
			perHost[from] += n
			perHost[to] += n
		}
	}
	r.BytesPerStep = float64(all) / float64(steps)
	for _, n := range perHost {
		r.MaxHostBytes = max(r.MaxHostBytes, float64(n)/float64(steps))
	}
}
