package page

import (
	"math"
	"net/http"
	"slices"
)

// Alpha is the answer of /api/v1/alpha: how sparsely a job uses its parameters, and how many
// bytes each way of keeping them equal on all machines would move in a step. Parameters: blocks
// (number of blocks of keys, default 64); machines and each (an assumed cluster: machines, and
// workers on each); link-speed (the speeds of their links in Mbit/s, separated by commas).
//
// An agent answers for its own host's workers: alpha is theirs, and the forms, which concern
// all machines, are left out if the number of machines is unknown.
type Alpha struct {
	Job string `json:"job"`
	// Alpha is the fraction of the parameters' values that a worker uses in a step, on average:
	// that of the ranges, weighted by bytes (Parallax, Kim et al. 2019, section 2.2).
	Alpha    float64 `json:"alpha"`
	Keys     uint64  `json:"keys"`
	Bytes    float64 `json:"bytes"`    // of all values that are pushed, each counted once
	Workers  int     `json:"workers"`  // number of workers whose steps are known
	Machines int     `json:"machines"` // number of machines with workers; 0 in an agent's answer
	Each     int     `json:"workers_of_a_machine"`
	// Even says that the servers' places are unknown, so that servers are assumed on all
	// machines, with parameters spread evenly.
	Even bool `json:"even,omitempty"`
	Compared
	Ranges []AlphaRange `json:"ranges"`

	// AtMost says that alpha may be lower and bytes higher. It is set by the planner, which
	// does not know how far the keys of hosts overlap and takes the largest number that one
	// host knows. What servers would move does not depend on it.
	AtMost       bool   `json:"at_most,omitempty"`
	SampledOneIn uint32 `json:"sampled_one_in"` // above 1, rare keys may have been missed, and alpha may be lower

	Sums *SumRules `json:"sums,omitempty"` // the planner's
}

// Compared has, for each form, what the busiest machine would send and receive in a step, of
// values alone (Table 3 of the paper). The busiest machine is the one whose link takes longest
// or, if no link's speed is known, the one that moves most.
type Compared struct {
	Forms   map[string]float64 `json:"forms,omitempty"`   // bytes, by form
	Seconds map[string]float64 `json:"seconds,omitempty"` // time on its link; absent if no link's speed is known
	Busiest map[string]string  `json:"busiest,omitempty"` // its host; absent if hosts have no names
	Least   string             `json:"least,omitempty"`   // the form that costs least
	// Chosen is the form that is proposed, among those that psidecar implements: servers, or
	// host_sums if that saves at least a twentieth. It is absent for all ranges together, since
	// each has its own.
	Chosen        string  `json:"chosen,omitempty"`
	ChosenBytes   float64 `json:"chosen_bytes,omitempty"` // of the busiest machine, with each range in its chosen form
	ChosenSeconds float64 `json:"chosen_seconds,omitempty"`
}

// An AlphaRange is a range of neighbouring keys with similar alpha.
type AlphaRange struct {
	Block
	Alpha float64 `json:"alpha"`
	Bytes float64 `json:"bytes"`
	Compared
	// Now says what the rules in force do with the range's pushes: host (summed by host), none
	// (not summed) or part (rules differ within it). It is absent where proxies' own flags
	// decide.
	Now string `json:"now,omitempty"`
}

// alphaBlocks is the default number of blocks. maxMachines bounds the machines, and the workers
// on each, of an assumed cluster.
const (
	alphaBlocks = 64
	maxMachines = 1 << 16
)

// alpha answers /api/v1/alpha. Names and rules are added to what AlphaOf computes.
func (s server) alpha(r *http.Request) (Alpha, error) {
	v := r.URL.Query()
	job, err := s.job(v)
	if err != nil {
		return Alpha{}, err
	}
	blocks, err := number(v, "blocks", alphaBlocks, maxBlocks)
	if err != nil {
		return Alpha{}, err
	}
	on, err := clusterFrom(v)
	if err != nil {
		return Alpha{}, err
	}
	a, err := AlphaOf(s.state, job, blocks, on)
	a.Ranges = nonNil(a.Ranges)
	if err == nil && s.sums != nil {
		a.follow(s.sums(job))
	}
	for i := range a.Ranges {
		a.Ranges[i].Name = s.called().Keys(job, uint64(a.Ranges[i].First), uint64(a.Ranges[i].Last))
	}
	return a, err
}

// AlphaOf computes a job's alpha from at most blocks blocks of keys, and the costs of the forms
// on a cluster; nil means the one that the job runs on, as far as that is known. It asks the
// state for several heatmaps.
func AlphaOf(state State, job string, blocks int, on *FormCluster) (Alpha, error) {
	ranges, h, err := pushed(state, job, blocks)
	if err != nil {
		return Alpha{}, err
	}
	loads, err := state.Servers(job, Range{})
	if err != nil {
		return Alpha{}, err
	}
	a := Alpha{Job: job, SampledOneIn: h.SampledOneIn}
	rounds, err := roundsOf(state, h, ranges, loads.Workers)
	if err != nil {
		return Alpha{}, err
	}
	for _, n := range rounds {
		if n > 0 {
			a.Workers++
		}
	}
	jobs := state.Jobs()
	a.AtMost = slices.ContainsFunc(jobs, func(j Job) bool { return j.Name == job && j.KeysAtLeast })
	if on == nil {
		on = clusterOf(state, jobs, job)
	}
	if len(on.Machines) > 0 {
		a.Machines, a.Each = on.Workers()
	}
	// On one machine nothing crosses a link, whichever the form.
	whole := a.Machines > 0 && len(on.Machines) > 1
	if !whole {
		on = EvenCluster(1, 1) // forms make no sense; alpha does not depend on the cluster
	}
	a.Even = whole && len(on.Servers) == 0
	figures, all := CompareForms(ranges, rounds, on)
	a.Alpha, a.Keys, a.Bytes = all.Alpha, all.Keys, all.Bytes
	if whole && all.Bytes > 0 {
		a.Compared = costsOf(&all, on)
		a.Chosen = "" // each range has its own
	}
	for i := range figures {
		f := &figures[i]
		to := AlphaRange{Block: NewBlock(f.First, f.Last, f.Keys, false), Alpha: f.Alpha, Bytes: f.Bytes}
		if whole {
			to.Compared = costsOf(f, on)
		}
		a.Ranges = append(a.Ranges, to)
	}
	return a, nil
}

// costsOf converts the figures of a range to the answer's form.
func costsOf(f *FormFigure, on *FormCluster) Compared {
	to := Compared{Forms: map[string]float64{}, Least: f.Costs.Least().String(), Chosen: f.Costs.Chosen().String(), ChosenBytes: f.Chosen.Bytes, ChosenSeconds: f.Chosen.Seconds}
	for form, cost := range f.Costs {
		name := Form(form).String()
		to.Forms[name] = cost.Bytes
		if cost.Seconds > 0 {
			if to.Seconds == nil {
				to.Seconds = map[string]float64{}
			}
			to.Seconds[name] = cost.Seconds
		}
		if host := on.Machines[cost.Machine].Name; host != "" {
			if to.Busiest == nil {
				to.Busiest = map[string]string{}
			}
			to.Busiest[name] = host
		}
	}
	return to
}

// pushed returns what each worker pushed of each block, or, in a job that pushes nothing,
// pulled. h has the workers' names, in the order of the figures.
func pushed(state State, job string, blocks int) (ranges []FormRange, h Heatmap, err error) {
	// What a worker uses in a step shows in its pushes. A job without any is judged by its
	// pulls.
	for _, measures := range [][2]Measure{{Pushes, PushedBytes}, {Pulls, PulledBytes}} {
		q := HeatmapQuery{Blocks: blocks, Last: math.MaxUint64, Measure: measures[0]}
		if h, err = state.Heatmap(job, q); err != nil {
			return nil, h, err
		}
		q.Measure = measures[1]
		bytes, err := state.Heatmap(job, q)
		if err != nil {
			return nil, h, err
		}
		ranges = rangesOf(&h, &bytes)
		if slices.ContainsFunc(ranges, func(r FormRange) bool { return slices.Max(append(r.Uses, 0)) > 0 }) {
			break
		}
	}
	return ranges, h, nil
}

// rangesOf joins two heatmaps, of uses and of bytes. They are taken one after the other, and
// new keys may change the blocks in between: only blocks that both have are kept.
func rangesOf(uses, bytes *Heatmap) (ranges []FormRange) {
	at := map[Key]int{}
	for i, b := range bytes.Blocks {
		at[b.First] = i
	}
	worker := map[string]int{}
	for w, name := range bytes.Workers {
		worker[name] = w
	}
	for i, b := range uses.Blocks {
		k, ok := at[b.First]
		if !ok || bytes.Blocks[k].Last != b.Last {
			continue
		}
		r := FormRange{First: uint64(b.First), Last: uint64(b.Last), Keys: b.Keys}
		for w, name := range uses.Workers {
			r.Uses = append(r.Uses, uses.Counts[w][i])
			n := uint64(0)
			if of, ok := worker[name]; ok {
				n = bytes.Counts[of][k]
			}
			r.Bytes = append(r.Bytes, n)
		}
		ranges = append(ranges, r)
	}
	return ranges
}

// roundsOf returns the number of steps of each of the heatmap's workers. It queries the hottest
// keys, which visits all keys, only if some worker pushes each key by itself.
func roundsOf(state State, h Heatmap, ranges []FormRange, loads []WorkerLoad) ([]uint64, error) {
	steps, uses := make([]uint64, len(h.Workers)), make([]uint64, len(h.Workers))
	for w, name := range h.Workers {
		if i := slices.IndexFunc(loads, func(l WorkerLoad) bool { return l.Name == name }); i >= 0 {
			steps[w] = loads[i].Steps
		}
		for _, r := range ranges {
			uses[w] += r.Uses[w]
		}
	}
	// The usual case, and the cheap one: one push has all keys of a step.
	if !PushedByKey(steps, uses) {
		return steps, nil
	}
	hot, err := state.Keys(h.Job, defaultHot)
	if err != nil {
		return nil, err
	}
	most := make([]uint64, len(h.Workers))
	for w, name := range h.Workers {
		of := slices.Index(hot.Workers, name)
		for _, key := range hot.Hottest {
			if of >= 0 && of < len(key.Workers) {
				most[w] = max(most[w], rounds(key.Workers[of], key.Pushes, key.Pulls))
			}
		}
	}
	return PushRounds(steps, uses, most), nil
}

// rounds estimates how many of a worker's accesses to a key are pushes (pulls if nobody pushes
// it), by the key's ratio over all workers.
func rounds(accesses, pushes, pulls uint64) uint64 {
	if pushes == 0 {
		return accesses
	}
	return uint64(math.Round(float64(accesses) * float64(pushes) / float64(pushes+pulls)))
}
