package agent

import (
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/planner/api"
)

// curves records the last hour of all jobs. All fields but log, which has its own lock, belong
// to noteHour.
type curves struct {
	log   history.Log
	at    time.Time                  // of the last point; zero: none yet
	jobs  map[string]history.Counted // running totals at that time
	usage usage
}

// usage are running totals of the process's cost and of its proxy's savings.
type usage struct {
	cpu      float64 // seconds, of the whole process
	kernel   float64 // seconds, of its programs in the kernel
	job, far uint64  // bytes, see Options.Saved
	carries  bool    // job and far are known
}

// noteHour adds a point to the log of each job, with what has happened since the previous
// point, and one to the log of the host, whose name is empty. Clock steps backwards start over.
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
	// There is nothing to subtract from yet, or time went back.
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
		// The totals are recorded all the same, for the next point.
		if first {
			continue
		}
		point.Sums = history.Between(c.jobs[name], counted[name])
		// The job's page shows the cost of watching beside the job, so each point carries the
		// host's figures.
		point.Host = host
		c.log.Add(name, point)
		j := a.job(&v)
		c.log.See(name, now, page.SeenOf(j.State, j.Measures))
	}
	c.at, c.jobs, c.usage = now, counted, used
	return nil
}

// usage returns the present totals.
func (a *Agent) usage() (u usage, err error) {
	if u.cpu, err = processSeconds(); err != nil {
		return u, err
	}
	a.cost.mu.Lock()
	u.kernel = a.cost.kernel
	a.cost.mu.Unlock()
	// A proxy that has started again counts from 0. The difference is then taken as 0, above,
	// rather than as a huge number.
	if a.opts.Saved != nil {
		u.job, u.far, u.carries = a.opts.Saved()
	}
	return u, nil
}

// report adds the totals to the report for the planner.
func (u usage) report(r *api.AgentReport) {
	r.ProcessSeconds, r.KernelSeconds = u.cpu, u.kernel
	r.Carries, r.CarriedJobBytes, r.CarriedFarBytes = u.carries, u.job, u.far
}

// History returns the curves of a job over the last hour, or those of the host if job is empty.
// A selection of nodes is derived from the intervals that have sums by node.
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
	h := page.NewHistory(job, q, points)
	h.Events = a.curves.log.Events(job)
	return h, nil
}

// partsOf returns what the selected nodes did in each interval of the job's sums (see
// counts.LocalityOptions for their number). Latencies are those of the selected workers, or of
// the servers if no worker is selected. For pairs of both there are none, since latencies are
// not kept by pair.
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
		// Only servers were selected, or nothing.
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
