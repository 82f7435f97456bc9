package main

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/psidecar/psidecar/agent/report"
	"github.com/psidecar/psidecar/planner/api"
)

// How often agents tell of keys one by one: see package agent.
const (
	windowSoon  = 400 * time.Millisecond
	windowEvery = 16 * windowSoon
	windowMost  = 8192
)

// Sizes of a report's large parts, as agents have them.
const (
	reportBlocks    = 256
	reportHot       = 256
	reportSkew      = 128
	reportLatencies = 64
	latencyBars     = 24
)

// An agent says what one of the fleet's hosts has seen.
type agent struct {
	host   int
	jobs   []*job
	drawer []*drawer
	began  time.Time

	mu       sync.Mutex // guards the rest
	windowed time.Time
	pace     time.Duration
	turned   bool // the worker uses other keys, and nobody was told
}

func newAgent(host int, jobs []*job) *agent {
	a := &agent{host: host, jobs: jobs, began: time.Now(), pace: windowSoon}
	for _, j := range jobs {
		a.drawer = append(a.drawer, newDrawer(j, host))
	}
	return a
}

// turn says that the worker uses other keys from now on.
func (a *agent) turn() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turned = true
}

// urgent is [report.New]'s.
func (a *agent) urgent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := time.Since(a.windowed)
	if a.turned && wait >= windowSoon || a.pace < windowEvery && wait >= a.pace {
		if a.turned {
			a.pace = windowSoon
		}
		return true
	}
	return false
}

// due says whether keys are told of one by one now, of what span, and whether that
// is sooner than as a rule.
func (a *agent) due() (span time.Duration, hurried, due bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	span = min(time.Since(a.windowed), windowEvery)
	if time.Since(a.windowed) < a.pace {
		return 0, false, false
	}
	hurried = a.pace < windowEvery
	a.windowed, a.pace, a.turned = time.Now(), min(2*a.pace, windowEvery), false
	return span, hurried, true
}

// report makes a report.
func (a *agent) report(w report.Wanted) *api.HostReport {
	now := time.Now()
	seconds := now.Sub(a.began).Seconds()
	r := &api.HostReport{
		Light:   w.Light,
		Agent:   &api.AgentReport{Version: "fleet", StartedUnixNanos: a.began.UnixNano(), CpuPercent: 1, CpuSeconds: seconds / 100, ProcessSeconds: seconds / 100, MemoryBytes: 100 << 20, SampledOneIn: 1},
		Machine: &api.Machine{LinkMbit: 25000, LinkSource: "made", Cores: 64},
	}
	span, hurried, due := a.due()
	most := windowMost
	if w.WindowKeys > 0 {
		most = min(most, w.WindowKeys)
	}
	for i, j := range a.jobs {
		steps := uint64(seconds * stepsASecond)
		jr := &api.JobReport{
			Job: j.name, Dialect: "pslite", NodeTable: j.table(), Servers: uint32(len(j.sets)), Workers: uint32(len(j.sets)), SampledOneIn: 1,
			DistinctKeys: j.opts.Keys, Bytes: steps << 16, LeftHostBytes: steps << 16, State: "running",
			FirstUnixNanos: j.began.UnixNano(), LastUnixNanos: now.UnixNano(),
			Recent:      &api.Recent{FirstUnixNanos: now.Add(-10 * time.Second).UnixNano(), LastUnixNanos: now.UnixNano(), Bytes: 10 * stepsASecond << 16},
			Connections: &api.Connections{Synced: uint32(2 * len(j.sets))},
			Sketch:      &api.Sketch{Blocks: 1000, FoldedBlocks: 900, MemoryBytes: 160 << 20, Bound: 10, Percent: 95},
			Steps:       []*api.Steps{{Worker: workerName(a.host), Steps: steps, Recent: 10 * stepsASecond, Timestamp: int32(steps)}},
			Nodes:       []*api.Node{a.node(j, "server", serverName(a.host), 8000), a.node(j, "worker", workerName(a.host), 9000)},
		}
		if !w.Light {
			a.large(jr, j, steps)
		}
		if due {
			jr.Window = a.drawer[i].window(span, most, hurried)
		}
		r.Jobs = append(r.Jobs, jr)
	}
	return r
}

func (a *agent) node(j *job, role, name string, port int) *api.Node {
	return &api.Node{Name: name, Role: role, Rank: int32(a.host), Address: fmt.Sprintf("%s:%d", address(a.host), port+j.index), Local: true}
}

// large adds what light reports leave out.
func (a *agent) large(r *api.JobReport, j *job, steps uint64) {
	worker := workerName(a.host)
	u := &api.Use{Worker: worker}
	for i := range uint64(reportBlocks) {
		each := uint64(math.MaxUint64 / reportBlocks)
		r.Blocks = append(r.Blocks, &api.Block{First: i * each, Last: i*each + each - 1, Keys: j.opts.Keys / reportBlocks})
		u.Pulls, u.Pushes = append(u.GetPulls(), steps*i), append(u.GetPushes(), steps*i)
		u.PulledBytes, u.PushedBytes = append(u.GetPulledBytes(), steps*i*valueBytes), append(u.GetPushedBytes(), steps*i*valueBytes)
	}
	r.Blocks[reportBlocks-1].Last = math.MaxUint64
	r.Uses = []*api.Use{u}
	set := j.setOf(a.host)
	for i := range min(reportHot, j.opts.Hot) {
		n := steps * uint64(reportHot-i)
		r.Hottest = append(r.Hottest, &api.HotKey{Key: j.key(j.hot(set, i)), Accesses: 2 * n, Bytes: 2 * n * valueBytes, Workers: []uint64{2 * n}, Pulls: n, Pushes: n})
	}
	for i := range uint64(reportSkew) {
		r.Skew = append(r.Skew, &api.SkewPoint{Keys: 1 << (i / 4), Accesses: steps * i})
	}
	latency := func(name string) *api.Latency {
		l := &api.Latency{Name: name}
		for i := range uint64(latencyBars) {
			l.Micros, l.Counts = append(l.GetMicros(), 100+20*i), append(l.GetCounts(), steps*(i+1)/latencyBars)
		}
		return l
	}
	r.ByWorker = []*api.Latency{latency(worker)}
	hosts := len(j.sets)
	for i := range min(hosts, reportLatencies) {
		r.ByServer = append(r.ByServer, latency(serverName((a.host+i)%hosts)))
	}
	for server := range hosts {
		r.Traffic = append(r.Traffic, &api.Traffic{Worker: worker, Server: serverName(server), ToServer: steps << 8, ToWorker: steps << 8, Requests: steps})
	}
}
