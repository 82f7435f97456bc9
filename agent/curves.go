package agent

import (
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/history"
	"github.com/psidecar/psidecar/planner/api"
)

// curves is the last hour of all jobs. All but log is noteHour's alone.
type curves struct {
	log   history.Log
	at    time.Time // when it was last looked; zero: never
	jobs  map[string]history.Counted
	usage usage
}

// usage is what psidecar's process has taken and its proxy sent since it began.
type usage struct {
	cpu      float64 // seconds, of the whole process
	kernel   float64 // seconds, of its programs in the kernel
	job, far uint64  // bytes, see Options.Saved
	carries  bool    // they are known
}

// noteHour keeps what happened since it was called last.
func (a *Agent) noteHour() error {
	c := &a.curves
	now := a.now()
	used, err := a.usage()
	if err != nil {
		return err
	}
	host := history.Host{
		CPU: used.cpu - c.usage.cpu, Kernel: used.kernel - c.usage.kernel, Carries: used.carries,
		JobBytes: float64(used.job - min(used.job, c.usage.job)), FarBytes: float64(used.far - min(used.far, c.usage.far)),
	}
	first := c.at.IsZero() || !now.After(c.at)
	point := history.Point{From: c.at, To: now, Sums: history.Sums{Host: host}}
	if !first {
		c.log.Add("", point)
	}
	counted := map[string]history.Counted{}
	for _, v := range a.observer.Jobs() {
		name := v.Job.Scheduler.String()
		if !a.shows(name) {
			continue
		}
		counted[name] = v.Job.Sums.Counted()
		if first {
			continue
		}
		point.Sums = history.Between(c.jobs[name], counted[name])
		point.Host = host
		c.log.Add(name, point)
	}
	c.at, c.jobs, c.usage = now, counted, used
	return nil
}

// usage returns what the process has taken and its proxy sent.
func (a *Agent) usage() (u usage, err error) {
	if u.cpu, err = processSeconds(); err != nil {
		return u, err
	}
	a.cost.mu.Lock()
	u.kernel = a.cost.kernel
	a.cost.mu.Unlock()
	if a.opts.Saved != nil {
		u.job, u.far, u.carries = a.opts.Saved()
	}
	return u, nil
}

// report adds it to the report for the planner.
func (u usage) report(r *api.AgentReport) {
	r.ProcessSeconds, r.KernelSeconds = u.cpu, u.kernel
	r.Carries, r.CarriedJobBytes, r.CarriedFarBytes = u.carries, u.job, u.far
}

// History returns how a job went over the last hour.
func (a *Agent) History(job string, q page.HistoryQuery) (page.History, error) {
	points := a.curves.log.Of(job, q.From, q.To)
	if job != "" {
		v, err := a.view(job)
		if err != nil {
			return page.History{}, err
		}
		if q.Some() {
			points = history.Among(points, partsOf(&v, q.Selection))
		}
	}
	return page.NewHistory(job, q, points), nil
}

// partsOf returns what some of a job's nodes did in each stretch of time of which
// sums by node are kept (counts.LocalityOptions says how many there are).
func partsOf(v *observe.JobView, of history.Selection) (parts []history.Part) {
	v.Job.Sums.EachInterval(func(in *counts.Interval) {
		p := history.Part{From: time.Unix(0, in.Start), To: time.Unix(0, in.End), Steps: map[string]float64{}, Servers: map[string]float64{}}
		chosen := func(names []string, i int, of func(string) bool) bool {
			return i < len(names) && names[i] != "" && of(names[i])
		}
		for w, n := range in.Steps {
			if chosen(v.WorkersByIndex, w, of.Worker) {
				p.Steps[v.WorkersByIndex[w]] += float64(n)
			}
		}
		for w, row := range in.Pairs {
			for s, pair := range row {
				if chosen(v.WorkersByIndex, w, of.Worker) && chosen(v.ServersByIndex, s, of.Server) {
					p.Servers[v.ServersByIndex[s]] += float64(pair.ToServer + pair.ToWorker)
				}
			}
		}
		var took history.Latency
		times, names, asked := in.ByWorker, v.WorkersByIndex, of.Worker
		if len(of.Workers) == 0 {
			times, names, asked = in.ByServer, v.ServersByIndex, of.Server
		}
		for i, l := range times {
			if chosen(names, i, asked) && !of.Pairs() {
				took.Merge(l)
			}
		}
		p.Micros, p.Counts = took.Bars()
		parts = append(parts, p)
	})
	return parts
}
