package live

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/dynamic"
)

// A job is what is known of one job's uses of keys, in the terms of package dynamic: machines are
// hosts that report, items are keys.
//
// Invariants: hosts, links and machine have the same machines; keys, used, twice, homes, number and items
// the same items. The number of a machine is never given to another. The number of an item changes
// only in retainItems, which tells the strategy and renumbers what workers have used.
type job struct {
	// mu guards everything but shown, name and opts. It is a pointer so that forget can replace the
	// rest of the job while it is held.
	mu *sync.Mutex
	// What the job moves, for the decisions of other jobs; nil if that is not known or the job is over.
	shown *atomic.Pointer[load]
	name  string
	// The run that is followed; "" if no proxy has named it.
	run     plan.Run
	opts    Options
	servers int

	// Hosts by machine.
	hosts []string
	// By machine, the speed of its link in Mbit/s as its host reports it; 0 if unknown.
	links   []uint32
	machine map[string]int // by host
	// By host, the time of the last message of the job in its last report, by its clock. It detects
	// a report that came twice.
	heard map[string]int64
	// The host of each server, by rank; "" if unknown.
	serves []string

	number map[uint64]int32 // item of a key
	keys   []uint64         // by item
	homes  []int32          // by item: rank of the server at which it is at home
	used   []uint32         // by item: number of the decision before which it was used last
	twice  []bool           // by item: more than one window had uses of it
	items  dynamic.Items
	door   door
	// The size of the value that was pushed last, 0 before; varies is set once two had
	// different sizes.
	size   uint32
	varies bool
	// The number of the next decision.
	turn uint32
	// The number of regular decisions, including those left out because one had just been made.
	round uint32
	// Uses of keys that had no item, or of workers beyond maxWorkers.
	full uint64
	// Uses that agents had no room for.
	missed uint64
	placed placed

	// By host and name, with a zero byte in between.
	workers map[string]*worker
	// The time of the last use, by the clocks of agents.
	last int64
	// How many decisions have passed since there was a use.
	idle int
	// When the last decision began.
	decided time.Time
	// shifted is set if workers have turned to other keys since the last decision.
	shifted bool
	// goesOn is set if bounds kept moves from the last plan, so that another one follows it; after a
	// rest if rests is set, too.
	goesOn, rests bool

	strategy dynamic.Strategy
	// shape describes the machines for which the strategy was made.
	shape string
	judge judge
	pace  pace
}

func newJob(name string, opts Options) *job {
	return &job{mu: new(sync.Mutex), shown: new(atomic.Pointer[load]), name: name, opts: opts, machine: map[string]int{}, heard: map[string]int64{}, number: map[uint64]int32{}, workers: map[string]*worker{}}
}

// take accepts a host's report and reports whether workers have turned to other keys.
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

// hurries reports whether a decision is due before the next regular one, because workers have turned
// to other keys or the last plan goes on. after is the plan's epoch if the decision comes after a
// rest, else 0.
func (j *job) hurries() (soon bool, after uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.rests && !j.shifted {
		after = j.judge.epoch
	}
	return j.shifted || j.goesOn, after
}

// addReport accepts a host's report. link is the speed of the host's link. A report without news
// since the host's last one is skipped: it may be a repetition, and the run may have ended on that
// host. It must not count as evidence for the number of servers, because other hosts may report the
// next run already.
func (j *job) addReport(host string, link uint32, r *api.JobReport) {
	if at := r.GetLastUnixNanos(); at != 0 {
		if j.heard[host] == at {
			return
		}
		j.heard[host] = at
	}
	if n := int(r.GetServers()); n > 0 && n != j.servers {
		// A job does not change its number of servers. It was started again.
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

// isOf reports whether a window may be of the run that is followed, by the digest of its node table
// and the time of its first use. Windows of the run before must not count: they have keys that no
// server of this run knows, and to move such a key would end a server, or give it a value of
// another length than the job's. An agent that was started within a run knows no table (table 0);
// then the times decide, by the clocks of its host and of the scheduler's.
func (j *job) isOf(table uint64, first int64) bool {
	is, known := j.run.Table()
	if !known || table != 0 {
		return !known || table == is
	}
	return first == 0 || !time.Unix(0, first).Before(j.run.Began())
}

// follow drops what is known of the run before when another one has begun: all its keys are at
// home.
func (j *job) follow(run plan.Run) {
	if run == j.run {
		return
	}
	// Uses that were seen before anybody named a run may be of either.
	if j.run != "" || len(j.keys) > 0 {
		j.forget()
	}
	j.run, j.placed = run, placed{}
}

// forget drops everything but the time of the last report of each host. The caller holds j.mu,
// which stays locked.
func (j *job) forget() {
	mu, shown, heard := j.mu, j.shown, j.heard
	*j = *newJob(j.name, j.opts)
	j.mu, j.shown, j.heard = mu, shown, heard
	shown.Store(nil)
}

// restart drops everything but the run and the judgement of its plans: the job has another number
// of servers.
func (j *job) restart(servers int) {
	judge, run := j.judge, j.run
	j.forget()
	j.judge, j.run = judge, run
	j.servers, j.serves = servers, make([]string, servers)
}

// speeds returns the speed of each machine's link in Mbit/s, or nil if none is known. An unknown
// link gets the mean of the others.
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

// maxWorkers is how many workers of a job are followed. Their names come from agents.
const maxWorkers = 1 << 16

// see adds the uses of a window to those of its workers. A pull costs two keys and a value on the
// wire, a push a key and a value.
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
			if len(j.workers) >= maxWorkers {
				j.full += uint64(len(u.GetKeys()))
				continue
			}
			who = &worker{machine: j.machine[host]}
			j.workers[name] = who
		}
		if w.GetShifted() { // what it told before may be of keys that it has turned from
			who.seen.reset()
			who.steps, who.hurried = 0, true
		}
		// A window without a whole step counts as one, so that its uses have a rate.
		who.steps += uint64(max(u.GetSteps(), 1))
		who.round = j.round
		for i, at := range u.GetKeys() {
			item := items[at]
			if item < 0 {
				j.full++
				continue
			}
			// A strategy takes no uses without bytes.
			if u.GetPulls()[i] == 0 && u.GetPushes()[i] == 0 {
				continue
			}
			value := float64(j.items.Size[item]) - j.opts.KeyBytes
			bytes := float64(u.GetPulls()[i])*(2*j.opts.KeyBytes+value) + float64(u.GetPushes()[i])*(j.opts.KeyBytes+value)
			who.seen.addUse(item, float32(bytes))
		}
		if j.opts.Strategy != "dppa" { // no other looks at requests
			continue
		}
		// The newest step only: that is what DPPA correlates.
		who.batch = dynamic.Batch{Machine: int32(who.machine), Pulled: pick(items, u.GetPulled()), Updated: pick(items, u.GetPushed())}
	}
}

// pick returns the items of some of a window's keys, in ascending order.
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

// defaultSize is the assumed size of a value that nobody has pushed yet: one float32.
const defaultSize = 4

// item returns the number of a key, which gets one if it is new, or -1 if there is no room. size is
// the size of its value, 0 if unknown. When half of the room is taken only keys that came before
// get in: of a job with far more keys, most are used once.
func (j *job) item(key uint64, size uint32) int32 {
	n, ok := j.number[key]
	if !ok {
		if len(j.keys) >= j.opts.MaxItems || len(j.keys) >= j.opts.MaxItems/2 && j.opts.MaxItems > doorFrom && !j.door.knows(key) {
			return -1
		}
		n = int32(len(j.keys))
		j.number[key] = n
		j.keys, j.used, j.twice = append(j.keys, key), append(j.used, j.turn), append(j.twice, false)
		j.items.Home = append(j.items.Home, 0) // set by place
		j.items.Owner = append(j.items.Owner, 0)
		j.items.Size = append(j.items.Size, float32(j.opts.KeyBytes+defaultSize))
		j.homes = append(j.homes, plan.HomeOf(key, j.servers))
	} else {
		j.twice[n] = true
	}
	j.used[n] = j.turn
	if size > 0 {
		j.varies = j.varies || j.size > 0 && size != j.size
		j.size = size
		j.items.Size[n] = float32(j.opts.KeyBytes) + float32(size)
	}
	return n
}

// patience is for how many regular decisions a worker that is not heard of is assumed to go on as
// before. Hosts report every few seconds, each in its own time; a machine would seem idle whose
// report is just late. Decisions for workers that have turned may follow each other faster than
// that.
const patience = 4
