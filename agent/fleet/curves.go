package fleet

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/agent/history"
	"github.com/psidecar/psidecar/agent/web"
	"github.com/psidecar/psidecar/planner/api"
)

// Curves is the last hour of all jobs, by what hosts report. Its zero value is
// empty and ready.
type Curves struct {
	log history.Log

	mu     sync.Mutex // guards the rest
	at     time.Time  // when it was last looked; zero: never
	before map[string]*api.HostReport
}

// Note keeps what happened since it was called last, by the newest report of each
// host. Reports are not made at the moment when they are looked at: what one says
// more than the one before is taken as the host's rate, for as long as passed
// since the last call.
func (c *Curves) Note(now time.Time, reports []*api.HostReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seconds := now.Sub(c.at).Seconds()
	first := c.at.IsZero() || seconds <= 0
	var host history.Host
	jobs := map[string]*gain{}
	newest := map[string]*api.HostReport{}
	names := allNames(reports)
	for _, r := range reports {
		newest[r.GetHost()] = r
		if first {
			continue
		}
		before, known := c.before[r.GetHost()]
		began := time.Unix(0, r.GetAgent().GetStartedUnixNanos())
		span := float64(r.GetUnixNanos()-before.GetUnixNanos()) / 1e9
		switch {
		case known && before.GetIncarnation() != r.GetIncarnation(), !known && began.After(c.at):
			before, span = nil, seconds // all of it is new
		case !known:
			before, span = r, 0 // what it saw before is not of now
		}
		share := 0.0
		if span > 0 {
			share = seconds / span
		}
		host = host.Plus(hostGain(r.GetAgent(), before.GetAgent(), share))
		for _, j := range r.GetJobs() {
			if jobs[j.GetJob()] == nil {
				jobs[j.GetJob()] = &gain{names: names[j.GetJob()], steps: map[string]float64{}, servers: map[string]float64{}}
			}
			jobs[j.GetJob()].add(j, jobOf(before, j.GetJob()), share)
		}
	}
	if !first {
		c.log.Add("", history.Point{From: c.at, To: now, Sums: history.Sums{Host: host}})
		for name, g := range jobs {
			sums := g.sums()
			sums.Host = host
			c.log.Add(name, history.Point{From: c.at, To: now, Sums: sums})
		}
	}
	c.at, c.before = now, newest
}

// allNames returns the nodes' better names, by job.
func allNames(reports []*api.HostReport) map[string]map[string]string {
	byJob := map[string][]*api.JobReport{}
	for _, r := range reports {
		for _, j := range r.GetJobs() {
			byJob[j.GetJob()] = append(byJob[j.GetJob()], j)
		}
	}
	names := map[string]map[string]string{}
	for job, of := range byJob {
		names[job] = betterNames(of)
	}
	return names
}

// hostGain is what a host's psidecar did from one report to another.
func hostGain(r, before *api.AgentReport, share float64) history.Host {
	return history.Host{
		CPU:      max(r.GetProcessSeconds()-before.GetProcessSeconds(), 0) * share,
		Kernel:   max(r.GetKernelSeconds()-before.GetKernelSeconds(), 0) * share,
		Carries:  r.GetCarries(),
		JobBytes: float64(less(r.GetCarriedJobBytes(), before.GetCarriedJobBytes())) * share,
		FarBytes: float64(less(r.GetCarriedFarBytes(), before.GetCarriedFarBytes())) * share,
	}
}

// gain is what a job did from some reports to newer ones.
type gain struct {
	names          map[string]string // better ones, by those in reports
	bytes, left    float64
	steps, servers map[string]float64 // by worker; by server, bytes
	micros, counts []uint64
}

func (g *gain) add(r, before *api.JobReport, share float64) {
	g.bytes += float64(less(r.GetBytes(), before.GetBytes())) * share
	g.left += float64(less(r.GetLeftHostBytes(), before.GetLeftHostBytes())) * share
	steps := map[string]uint64{}
	for _, s := range before.GetSteps() {
		steps[s.GetWorker()] = s.GetSteps()
	}
	for _, s := range r.GetSteps() {
		g.steps[g.name(s.GetWorker())] += float64(less(s.GetSteps(), steps[s.GetWorker()])) * share
	}
	for _, p := range trafficMinus(r.GetTraffic(), before.GetTraffic()) {
		g.servers[g.name(p.GetServer())] += float64(p.GetToServer()+p.GetToWorker()) * share
	}
	for _, l := range timesMinus(r.GetByServer(), before.GetByServer()) {
		g.micros, g.counts = history.Merged(g.micros, g.counts, l.GetMicros(), l.GetCounts())
	}
}

func (g *gain) name(reported string) string {
	if better, ok := g.names[reported]; ok {
		return better
	}
	return reported
}

func (g *gain) sums() history.Sums {
	s := history.Sums{Bytes: g.bytes, LeftHost: g.left, Micros: g.micros, Counts: g.counts}
	s.Steps = history.Median(slices.Collect(maps.Values(g.steps)))
	s.Busiest, s.Mean = history.Load(slices.Collect(maps.Values(g.servers)))
	return s
}

// History returns how a job went over the last hour.
func (c *Curves) History(job string, r web.Range) (web.History, error) {
	return web.NewHistory(&c.log, job, r), nil
}
