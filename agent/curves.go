package agent

import (
	"time"

	"github.com/psidecar/psidecar/agent/history"
	"github.com/psidecar/psidecar/agent/locality"
	"github.com/psidecar/psidecar/agent/web"
	"github.com/psidecar/psidecar/planner/api"
)

// curves is the last hour of all jobs. All but log is noteHour's alone.
type curves struct {
	log   history.Log
	at    time.Time // when it was last looked; zero: never
	jobs  map[string]locality.Counted
	usage usage
}

// usage is what psidecar's process has taken and its proxy sent since it began.
type usage struct {
	cpu      float64 // seconds, of the whole process
	kernel   float64 // seconds, of its programs in the kernel
	job, far uint64  // bytes, see Options.Saved
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
		CPU: used.cpu - c.usage.cpu, Kernel: used.kernel - c.usage.kernel, Carries: a.opts.Saved != nil,
		JobBytes: float64(used.job - min(used.job, c.usage.job)), FarBytes: float64(used.far - min(used.far, c.usage.far)),
	}
	first := c.at.IsZero() || !now.After(c.at)
	point := history.Point{From: c.at, To: now, Sums: history.Sums{Host: host}}
	if !first {
		c.log.Add("", point)
	}
	counted := map[string]locality.Counted{}
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
		u.job, u.far = a.opts.Saved()
	}
	return u, nil
}

// report adds it to what the planner is told.
func (u usage) report(r *api.AgentReport, carries bool) {
	r.ProcessSeconds, r.KernelSeconds = u.cpu, u.kernel
	r.Carries, r.CarriedJobBytes, r.CarriedFarBytes = carries, u.job, u.far
}

// History returns how a job went over the last hour.
func (a *Agent) History(job string, r web.Range) (web.History, error) {
	if job != "" {
		if _, err := a.view(job); err != nil {
			return web.History{}, err
		}
	}
	return web.NewHistory(&a.curves.log, job, r), nil
}
