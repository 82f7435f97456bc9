package live

import (
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/dynamic"
	"github.com/psidecar/psidecar/planner/plan"
)

// A job is the state of one job's uses of keys. Its machines are hosts that report,
// its items keys. Planner says in which order locks are acquired.
//
// Invariants: hosts, links and machine number the same machines, keys, used, number and
// items the same items; machines' numbers are never given to others, and items' by
// forget alone, which tells the strategy.
type job struct {
	// mu guards the rest but name and opts. A job's decision holds it, so that reports of
	// this job wait for it, and those of others do not.
	mu      *sync.Mutex
	name    string
	run     plan.Run // empty: nobody has named it
	opts    Options
	servers int

	hosts   []string         // by machine
	links   []uint32         // by machine: speed in Mbit/s as its host says, 0 unknown
	machine map[string]int   // by host
	heard   map[string]int64 // by host: when it last saw a message of the job, by its clock
	serves  []string         // host of each server, by rank; empty: not known

	number map[uint64]int32 // item of a key
	keys   []uint64         // by item
	homes  []int32          // by item: rank of the server at which it is at home
	used   []uint32         // by item: number of the decision before which it was used last
	items  dynamic.Items
	door   door
	turn   uint32 // number of the next decision
	full   uint64 // uses of keys for which there was no item
	missed uint64 // uses that agents left out
	placed placed

	workers map[string]*worker // by host and name
	last    int64              // when something was used, as the agents' clocks say
	idle    int                // decisions since something was
	shifted bool               // workers turned to other keys since the last decision, or the plan goes on
	goesOn  bool               // the last plan has as many moves as it may have

	strategy dynamic.Strategy
	shape    string // what the strategy was made for
	judge    judge
	pace     pace
}

func newJob(name string, opts Options) *job {
	return &job{mu: new(sync.Mutex), name: name, opts: opts, machine: map[string]int{}, heard: map[string]int64{}, number: map[uint64]int32{}, workers: map[string]*worker{}}
}

// take is addReport, and reports whether workers turned to other keys.
func (j *job) take(host string, link uint32, r *api.JobReport) (shifted bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addReport(host, link, r)
	if r.GetWindow().GetShifted() {
		j.shifted = true
		return true
	}
	return false
}

// turned reports whether workers turned to other keys since the last decision.
func (j *job) turned() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.shifted
}

// addReport takes in one host's report. One that saw nothing since its last is of a run
// that has ended there, perhaps: it is no evidence of the servers any more, while
// others may be in the next run already. link is the speed of the host's.
func (j *job) addReport(host string, link uint32, r *api.JobReport) {
	if at := r.GetLastUnixNanos(); at != 0 {
		if j.heard[host] == at {
			return
		}
		j.heard[host] = at
	}
	if n := int(r.GetServers()); n > 0 && n != j.servers {
		j.restart(n)
	}
	if _, ok := j.machine[host]; !ok {
		j.machine[host] = len(j.hosts)
		j.hosts, j.links = append(j.hosts, host), append(j.links, 0)
	}
	j.links[j.machine[host]] = link
	for _, n := range r.GetNodes() {
		if rank := int(n.GetRank()); n.GetRole() == "server" && n.GetLocal() && rank >= 0 && rank < len(j.serves) {
			j.serves[rank] = host
		}
	}
	for _, s := range r.GetSteps() {
		if w := j.workers[host+"\x00"+s.GetWorker()]; w != nil {
			w.total = s.GetSteps()
		}
	}
	if w := r.GetWindow(); w != nil && j.servers > 0 && j.isOf(r.GetNodeTable(), w.GetFirstUnixNanos()) {
		j.see(host, w)
		j.last, j.idle = max(j.last, w.GetLastUnixNanos()), 0
	}
}

// isOf reports whether a window of a run with a node table of that digest, and with
// a first use at that time, may be of the run that is followed. What an agent that
// lags behind tells of the run before is not: it has keys that no server of this run
// knows, and to move one would end such a server, or give it a value of another
// length than the job's. An agent that began within a run knows no table (0): then
// the time tells, by the clocks of its host and of the scheduler's.
func (j *job) isOf(table uint64, first int64) bool {
	is, known := j.run.Table()
	if !known || table != 0 {
		return !known || table == is
	}
	return first == 0 || !time.Unix(0, first).Before(j.run.Began())
}

// follow drops the state of the run before when another one has begun: all its keys
// are at home.
func (j *job) follow(run plan.Run) {
	if run == j.run {
		return
	}
	if j.run != "" || len(j.keys) > 0 { // seen before anybody named a run: of which one is not known
		j.forget()
	}
	j.run, j.placed = run, placed{}
}

// forget drops all but the last report of each host.
func (j *job) forget() {
	mu, heard := j.mu, j.heard
	*j = *newJob(j.name, j.opts)
	j.mu, j.heard = mu, heard
}

// restart forgets all but the name: the job has started over, with other servers.
func (j *job) restart(servers int) {
	judge, run := j.judge, j.run
	j.forget()
	j.judge, j.run = judge, run
	j.servers, j.serves = servers, make([]string, servers)
}

// speeds returns how fast each machine's link is, in Mbit/s, nil where none is
// known. One that is not is taken to be as the others are in the mean.
func (j *job) speeds() []float64 {
	sum, known := 0.0, 0.0
	for _, mbit := range j.links {
		if mbit > 0 {
			sum, known = sum+float64(mbit), known+1
		}
	}
	if known == 0 {
		return nil
	}
	speed := make([]float64, len(j.links))
	for i, mbit := range j.links {
		if speed[i] = float64(mbit); mbit == 0 {
			speed[i] = sum / known
		}
	}
	return speed
}

// see adds a window of uses.
func (j *job) see(host string, w *api.Window) {
	j.missed += w.GetLeftOut()
	items := make([]int32, len(w.GetKeys()))
	for i, key := range w.GetKeys() {
		size := uint32(0)
		if sizes := w.GetValueBytes(); len(sizes) > 0 {
			size = sizes[min(i, len(sizes)-1)]
		}
		items[i] = j.item(key, size)
	}
	for _, u := range w.GetUses() {
		name := host + "\x00" + u.GetWorker()
		who := j.workers[name]
		if who == nil {
			who = &worker{machine: j.machine[host]}
			j.workers[name] = who
		}
		who.steps += uint64(max(u.GetSteps(), 1))
		who.missed = 0
		for i, at := range u.GetKeys() {
			item := items[at]
			if item < 0 {
				j.full++
				continue
			}
			value := float64(j.items.Size[item]) - j.opts.KeyBytes
			bytes := float64(u.GetPulls()[i])*(2*j.opts.KeyBytes+value) + float64(u.GetPushes()[i])*(j.opts.KeyBytes+value)
			who.seen.addUse(item, float32(bytes))
		}
		if j.opts.Strategy != "dppa" { // no other looks at requests
			continue
		}
		who.batch = dynamic.Batch{Machine: int32(who.machine), Pulled: pick(items, u.GetPulled()), Updated: pick(items, u.GetPushed())}
	}
}

// pick returns the items of some of a window's keys, ascending.
func pick(items []int32, numbers []uint32) []int32 {
	var picked []int32
	for _, n := range numbers {
		if items[n] >= 0 {
			picked = append(picked, items[n])
		}
	}
	slices.Sort(picked)
	return picked
}

// defaultSize is what a value is taken to have that nobody pushes.
const defaultSize = 4

// item returns the number of a key, -1 where there is no room for it.
func (j *job) item(key uint64, size uint32) int32 {
	n, ok := j.number[key]
	if !ok {
		if len(j.keys) >= j.opts.MaxItems || len(j.keys) >= j.opts.MaxItems/2 && j.opts.MaxItems > doorFrom && !j.door.knows(key) {
			return -1
		}
		n = int32(len(j.keys))
		j.number[key] = n
		j.keys, j.used = append(j.keys, key), append(j.used, j.turn)
		j.items.Home = append(j.items.Home, 0) // set by place
		j.items.Owner = append(j.items.Owner, 0)
		j.items.Size = append(j.items.Size, float32(j.opts.KeyBytes+defaultSize))
		j.homes = append(j.homes, plan.HomeOf(key, j.servers))
	}
	j.used[n] = j.turn
	if size > 0 {
		j.items.Size[n] = float32(j.opts.KeyBytes) + float32(size)
	}
	return n
}

// patience is for how many decisions a worker that is not heard of is taken to
// go on as before: hosts tell of their workers every few seconds, each in its own
// time, and with one left out its machine would seem idle that is not.
const patience = 4
