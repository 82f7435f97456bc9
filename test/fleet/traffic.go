package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/splitmix"
	"github.com/psidecar/psidecar/planner/api"
)

// A job is one that all hosts work for. Its keys are numbered by how much they are
// used by all; each worker has a set of keys that it uses most.
type job struct {
	opts  *Options
	index int
	name  string
	run   plan.Run
	began time.Time

	mu      sync.Mutex // guards the rest
	sets    []int      // by host: which set its worker uses
	wanted  map[uint64]int32
	records []recorded // of wanted keys
}

// recorded is how many wanted keys a version of the plan brought.
type recorded struct {
	version uint64
	keys    int
}

func newJob(index int, o *Options) *job {
	now := time.Now()
	j := &job{opts: o, index: index, name: fmt.Sprintf("198.18.%d.1:9000", index), run: plan.NewRun("", now, uint64(index)+1), began: now}
	for h := range o.Hosts {
		j.sets = append(j.sets, h)
	}
	return j
}

// table is the digest of the job's node table, as its run's name has it.
func (j *job) table() uint64 {
	t, _ := j.run.Table()
	return t
}

// key returns the key of a number.
func (j *job) key(n uint64) uint64 {
	if !j.opts.Dense {
		return splitmix.Next((n + uint64(j.index)<<48) * splitmix.Golden)
	}
	each := (j.opts.Keys + uint64(j.opts.Hosts) - 1) / uint64(j.opts.Hosts)
	return plan.HomeRange(int32(n/each), j.opts.Hosts).First + n%each
}

// hot returns the number of a key of a set. Where keys are dense, a set's keys are
// neighbours, at home with the next host's server.
func (j *job) hot(set, i int) uint64 {
	each := j.opts.Keys / uint64(j.opts.Hosts)
	return uint64((set+1)%j.opts.Hosts)*each + min(uint64(j.opts.Shared), each-uint64(j.opts.Hot)) + uint64(i)
}

// setOf returns the set that a host's worker uses.
func (j *job) setOf(host int) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.sets[host]
}

// shift has the first hosts, so many, use each other's sets, and says which keys
// should go where from now on.
func (j *job) shift(hosts int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	first := j.sets[0]
	copy(j.sets[:hosts], j.sets[1:hosts])
	j.sets[hosts-1] = first
	j.wanted, j.records = map[uint64]int32{}, nil
	for h, set := range j.sets[:hosts] {
		for i := range j.opts.Hot {
			j.wanted[j.key(j.hot(set, i))] = int32(h)
		}
	}
}

// note takes in that keys were recorded.
func (j *job) note(first, last []uint64, to int32, version uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for i, k := range first {
		end := k
		if len(last) > 0 {
			end = last[i]
		}
		for ; k <= end; k++ {
			if who, ok := j.wanted[k]; ok && who == to {
				n++
				delete(j.wanted, k)
			}
		}
	}
	if n > 0 {
		j.records = append(j.records, recorded{version, n})
	}
}

// drawer makes one worker's windows.
type drawer struct {
	job    *job
	host   int
	random *rand.Rand
	zipf   *rand.Zipf
	turn   int // of hot keys that did not fit
	steps  uint64
	uses   []use // scratch
}

type use struct {
	key   uint64
	times uint32
}

func newDrawer(j *job, host int) *drawer {
	r := rand.New(rand.NewPCG(j.opts.Seed+uint64(j.index), uint64(host)))
	return &drawer{job: j, host: host, random: r, zipf: rand.NewZipf(r, j.opts.Zipf, 1, j.opts.Keys-1)}
}

const (
	stepsASecond = 10
	valueBytes   = 64
)

// window is what the worker used in a span, as far as it is of so many keys: half of
// them the most used ones, half any others, as agents do.
func (d *drawer) window(span time.Duration, most int, shifted bool) *api.Window {
	o := d.job.opts
	steps := max(int(span.Seconds()*stepsASecond), 1)
	d.steps += uint64(steps)
	d.uses = d.uses[:0]
	put := func(n uint64, times int) { d.uses = append(d.uses, use{d.job.key(n), uint32(max(times, 1))}) }
	set, keys := d.job.setOf(d.host), min(o.Window, most)
	for n := range min(o.Shared, keys/4) {
		put(uint64(n), steps)
	}
	for i := range o.Hot { // the first of a set are used most
		if len(d.uses) >= keys/2 {
			rest := o.Hot - i
			for range min(rest, keys/2*rest/(o.Window-keys/2)) {
				d.turn = (d.turn + 1) % rest
				put(d.job.hot(set, i+d.turn), steps/4)
			}
			break
		}
		put(d.job.hot(set, i), steps/2+d.random.IntN(steps/2+1))
	}
	for len(d.uses) < keys {
		put(d.zipf.Uint64(), 1)
	}
	slices.SortFunc(d.uses, func(a, b use) int {
		if a.key < b.key {
			return -1
		} else if a.key > b.key {
			return 1
		}
		return int(b.times) - int(a.times)
	})
	now := time.Now().UnixNano()
	w := &api.Window{FirstUnixNanos: now - int64(span), LastUnixNanos: now, ValueBytes: []uint32{valueBytes}, Shifted: shifted}
	u := &api.WindowUse{Worker: workerName(d.host), Steps: uint32(steps)}
	for _, x := range d.uses {
		if n := len(w.GetKeys()); n > 0 && w.GetKeys()[n-1] == x.key {
			continue
		}
		u.Keys = append(u.GetKeys(), uint32(len(w.GetKeys())))
		w.Keys = append(w.GetKeys(), x.key)
		u.Pulls, u.Pushes = append(u.GetPulls(), x.times), append(u.GetPushes(), x.times)
	}
	u.Pulled, u.Pushed = u.GetKeys(), u.GetKeys()
	w.Uses = []*api.WindowUse{u}
	return w
}

func workerName(host int) string { return fmt.Sprintf("worker%d", host) }
func serverName(host int) string { return fmt.Sprintf("server%d", host) }
