package live

import (
	"fmt"

	"github.com/psidecar/psidecar/planner/dynamic"
)

// A pace is how fast a job goes and what each of its hosts moves, by its last
// decision. Jobs that share hosts share their links: what the others move counts when
// one is planned.
type pace struct {
	from, to int64     // when something was used before the last two decisions, in nanoseconds since 1970
	steps    float64   // a second; 0: not known yet
	bytes    []float64 // a step, by machine
}

// note records a decision, and the steps since the one before.
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

// A load is what a job moves on its hosts.
type load struct {
	hosts []string
	steps float64   // a second
	bytes []float64 // a step, by machine
}

// load returns what the job moves; ok is false where it is over, or not known.
func (j *job) load() (l load, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return load{j.hosts, j.pace.steps, j.pace.bytes}, j.pace.steps > 0 && j.idle <= patience
}

// paces returns what the jobs but one move, by name.
func (p *Planner) paces(but *job) (others []load) {
	for _, other := range p.all() {
		if other == but {
			continue
		}
		if l, ok := other.load(); ok {
			others = append(others, l)
		}
	}
	return others
}

// elsewhere returns what each of the job's machines moves for other jobs, in the time
// of one of its steps; nil: nothing, or it is not known how fast the jobs go.
func (j *job) elsewhere(others []load) []float64 {
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

// plus returns what machines move in all.
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
	// everybody is which part of the machines use a key that everybody does, and the
	// largest part of its uses that one of them makes.
	everybody = 0.5
	// telling is the part of all bytes that such keys must be to be worth a remark.
	telling = 0.05
)

// sharedKeys describes the part of the moved bytes that is of keys which all workers
// use; empty where it is small. No place is better for them than another, so that
// they stay where they are.
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
	return fmt.Sprintf("; %d keys that most hosts use are %.0f%% of the bytes and stay, no place is better for them: what helps is to use them less often, in fewer bytes (--codec, --threshold), or once a host (--share-pulls, --aggregate host)", keys, 100*of/all)
}
