package live

import (
	"fmt"

	"github.com/psidecar/psidecar/planner/dynamic"
)

// A pace is how fast a job goes and what its hosts move for it, as of its last decision. Jobs that
// share hosts share their links, so what the others move counts when one is planned.
type pace struct {
	// The times of the last use before each of the last two decisions, in nanoseconds since 1970.
	from, to int64
	// Steps per second, smoothed over decisions; 0 if unknown yet.
	steps float64
	// Bytes per step, by machine.
	bytes []float64
}

// note records a decision: the steps since the one before, the time of the last use, and the bytes
// per step by machine.
func (p *pace) note(steps float64, last int64, bytes []float64) {
	if p.from, p.to = p.to, last; p.from > 0 && p.to > p.from {
		rate := steps / (float64(p.to-p.from) / 1e9)
		if p.steps > 0 {
			rate = (p.steps + rate) / 2
		}
		p.steps = rate
	}
	p.bytes = bytes
}

// A load is what a job moves on its hosts. It is not changed once it is published.
type load struct {
	hosts []string
	steps float64   // a second
	bytes []float64 // a step, by machine
}

// show publishes the job's load for the decisions of other jobs, which so need not wait for this
// one's. The caller holds j.mu.
func (j *job) show() {
	if j.pace.steps > 0 && j.idle <= patience {
		j.shown.Store(&load{j.hosts[:len(j.hosts):len(j.hosts)], j.pace.steps, j.pace.bytes})
	} else {
		j.shown.Store(nil)
	}
}

// paces returns the loads of all jobs but one, by name.
func (p *Planner) paces(but *job) (others []*load) {
	for _, other := range p.all() {
		if l := other.shown.Load(); l != nil && other != but {
			others = append(others, l)
		}
	}
	return others
}

// elsewhere returns the bytes that each of the job's machines moves for other jobs during one of
// this job's steps; nil if there are none, or if the job's speed is unknown.
func (j *job) elsewhere(others []*load) []float64 {
	if j.pace.steps == 0 {
		return nil
	}
	var base []float64
	for _, other := range others {
		for machine, bytes := range other.bytes {
			if here, shared := j.machine[other.hosts[machine]]; shared {
				if base == nil {
					base = make([]float64, len(j.hosts))
				}
				base[here] += bytes * other.steps / j.pace.steps
			}
		}
	}
	return base
}

// plus returns the sums by machine. base may be nil, or shorter.
func plus(bytes, base []float64) []float64 {
	if base == nil {
		return bytes
	}
	sum := make([]float64, len(bytes))
	for i, b := range bytes {
		sum[i] = b
		if i < len(base) {
			sum[i] += base[i]
		}
	}
	return sum
}

const (
	// A key is shared by everybody if at least this fraction of the machines uses it, and none of
	// them makes a larger fraction of its uses.
	everybody = 0.5
	// telling is the fraction of all bytes from which on such keys are reported.
	telling = 0.05
)

// sharedKeys describes, for the reason of a plan, the keys that most hosts use about equally, if
// they carry a notable part of the bytes. No place is better than another for them, so they do not
// move, and other measures help instead.
func sharedKeys(e *dynamic.Epoch, machines int) string {
	if machines < 3 {
		return ""
	}
	keys, of, all := 0, 0.0, 0.0
	for from := 0; from < len(e.Uses); {
		to, sum, most := from, 0.0, 0.0
		for ; to < len(e.Uses) && e.Uses[to].Item == e.Uses[from].Item; to++ {
			b := float64(e.Uses[to].Bytes)
			sum, most = sum+b, max(most, b)
		}
		all += sum
		if float64(to-from) >= everybody*float64(machines) && most < everybody*sum {
			keys, of = keys+1, of+sum
		}
		from = to
	}
	if keys == 0 || of < telling*all {
		return ""
	}
	return fmt.Sprintf("; %d keys used by most hosts are %.0f%% of the bytes and stay, because no place is better: reduce their traffic with --codec, --threshold, --share-pulls or --aggregate host", keys, 100*of/all)
}
