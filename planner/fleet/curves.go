package fleet

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// Curves keeps the last hour of all jobs as points at regular intervals. The zero value is empty
// and ready. Its methods may be called from any goroutine.
type Curves struct {
	// Kept returns the reports of the last hour, those of a host in the order in which they came,
	// and when each came. From them curves of some of a job's nodes are computed. With nil there
	// are none. It is set before first use.
	Kept func() (reports []*api.HostReport, at []time.Time)

	log history.Log

	mu sync.Mutex // guards the rest
	at time.Time  // when Note was called last; zero if it was not
	// before has the reports of that call, by host.
	before map[string]*api.HostReport
}

// Note adds a point for the time since the last call. reports are the newest of each host.
//
// Hosts report at their own times, which are not those of Note. So the difference between a host's
// reports is taken as a rate, and the rate times the interval between the calls is the host's
// contribution. Otherwise a point would have two reports of some hosts and none of others.
//
// The steps and bytes of a job are sums over its hosts. Processor time is of the hosts, whatever
// jobs run there, so each job's point has that of the whole fleet.
func (c *Curves) Note(now time.Time, reports []*api.HostReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seconds := now.Sub(c.at).Seconds()
	first := c.at.IsZero() || seconds <= 0
	var host history.Host
	jobs := map[string]*gain{}
	newest := map[string]*api.HostReport{}
	// Nodes are matched by name across reports, so all reports of a job use the same names.
	names := allNames(reports)
	for _, r := range reports {
		newest[r.GetHost()] = r
		if first {
			continue
		}
		before, known := c.before[r.GetHost()]
		began := time.Unix(0, r.GetAgent().GetStartedUnixNanos())
		// The time between the two reports, by the host's own clock.
		span := float64(r.GetUnixNanos()-before.GetUnixNanos()) / 1e9
		switch {
		// A new agent counts from zero: everything in its report has happened since the last call.
		case known && before.GetIncarnation() != r.GetIncarnation(), !known && began.After(c.at):
			before, span = nil, seconds // all of it is new
		// This planner has just started, or the host has just come back. What the agent has counted
		// so far cannot be dated.
		case !known:
			before, span = r, 0 // what it saw before is not of now
		}
		// A host without a new report contributes nothing to this point.
		share := 0.0
		if span > 0 {
			share = seconds / span
		}
		large := share
		if before != nil && share > 0 {
			large = largeShare(r, before, seconds)
		}
		host = host.Plus(hostGain(r.GetAgent(), before.GetAgent(), share))
		for _, j := range r.GetJobs() {
			if jobs[j.GetJob()] == nil {
				jobs[j.GetJob()] = &gain{names: names[j.GetJob()], steps: map[string]float64{}, servers: map[string]float64{}}
			}
			jobs[j.GetJob()].addReport(j, jobOf(before, j.GetJob()), share, large)
		}
	}
	if !first {
		// The empty name is the whole fleet, which has no steps of its own.
		c.log.Add("", history.Point{From: c.at, To: now, Sums: history.Sums{Host: host}})
		for name, g := range jobs {
			sums := g.sums()
			sums.Host = host
			c.log.Add(name, history.Point{From: c.at, To: now, Sums: sums})
		}
	}
	c.at, c.before = now, newest
}

// largeShare returns by what factor the difference in the large parts of two reports counts. If
// whole reports are rare, the difference counts fully at once when it comes: those of other hosts
// come in between, so that sums over hosts are steady.
func largeShare(r, before *api.HostReport, seconds float64) float64 {
	at := func(r *api.HostReport) int64 { return cmp.Or(r.GetWholeUnixNanos(), r.GetUnixNanos()) }
	span := float64(at(r)-at(before)) / 1e9
	switch {
	case span <= 0:
		return 0
	case span > 2*seconds:
		return 1
	}
	return seconds / span
}

// allNames returns the better names of nodes, by job.
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

// hostGain returns what psidecar did on a host from one report to the next. before may be nil.
func hostGain(r, before *api.AgentReport, share float64) history.Host {
	return history.Host{
		CPU:      max(r.GetProcessSeconds()-before.GetProcessSeconds(), 0) * share,
		Kernel:   max(r.GetKernelSeconds()-before.GetKernelSeconds(), 0) * share,
		Carries:  r.GetCarries(),
		JobBytes: float64(less(r.GetCarriedJobBytes(), before.GetCarriedJobBytes())) * share,
		FarBytes: float64(less(r.GetCarriedFarBytes(), before.GetCarriedFarBytes())) * share,
	}
}

// A gain is what a job did from some reports to the next ones, summed over hosts. of selects nodes;
// its zero value selects all.
type gain struct {
	names       map[string]string // better ones, by those in reports
	of          history.Selection
	bytes, left float64
	// Steps by worker, and bytes by server.
	steps, servers map[string]float64
	micros, counts []uint64
}

// addReport adds the difference of two reports of a host. share is the factor for its small parts,
// large that for its large ones; before may be nil.
func (g *gain) addReport(r, before *api.JobReport, share, large float64) {
	g.bytes += float64(less(r.GetBytes(), before.GetBytes())) * share
	g.left += float64(less(r.GetLeftHostBytes(), before.GetLeftHostBytes())) * share
	steps := map[string]uint64{}
	for _, s := range before.GetSteps() {
		steps[s.GetWorker()] = s.GetSteps()
	}
	for _, s := range r.GetSteps() {
		if worker := g.name(s.GetWorker()); g.of.Worker(worker) {
			g.steps[worker] += float64(less(s.GetSteps(), steps[s.GetWorker()])) * share
		}
	}
	if large == 0 {
		return
	}
	for _, p := range trafficMinus(r.GetTraffic(), before.GetTraffic()) {
		if server := g.name(p.GetServer()); g.of.Server(server) && g.of.Worker(g.name(p.GetWorker())) {
			g.servers[server] += float64(p.GetToServer()+p.GetToWorker()) * large
		}
	}
	// Request times are reported by worker and by server, but not by pair.
	if g.of.Pairs() {
		return // how long their requests took is not known
	}
	// Each request is in both distributions. Which one is merged depends on what is selected, so
	// that none counts twice.
	times, asked := (*api.JobReport).GetByServer, g.of.Server
	if len(g.of.Workers) > 0 {
		times, asked = (*api.JobReport).GetByWorker, g.of.Worker
	}
	for _, l := range timesMinus(times(r), times(before)) {
		if asked(g.name(l.GetName())) {
			g.micros, g.counts = history.Merged(g.micros, g.counts, l.GetMicros(), l.GetCounts())
		}
	}
}

// name returns the better name of a node.
func (g *gain) name(reported string) string {
	if better, ok := g.names[reported]; ok {
		return better
	}
	return reported
}

// sums returns the figures of a point: the median worker's steps, which one straggler does not
// change, and the busiest and mean server's bytes, whose ratio is the imbalance.
func (g *gain) sums() history.Sums {
	s := history.Sums{Bytes: g.bytes, LeftHost: g.left, Micros: g.micros, Counts: g.counts}
	s.Steps = history.Median(slices.Collect(maps.Values(g.steps)))
	s.Busiest, s.Mean = history.Load(slices.Collect(maps.Values(g.servers)))
	return s
}

// History returns the points of a job in the range of q, of the selected nodes only if q selects
// some. It never fails.
func (c *Curves) History(job string, q page.HistoryQuery) (page.History, error) {
	points := c.log.Of(job, q.From, q.To)
	if q.Some() && job != "" {
		// The log has only sums over nodes. For some of them the kept reports are compared again.
		points = history.Among(points, c.parts(job, q.Selection))
	}
	h := page.NewHistory(job, q, points)
	h.Events = c.log.Events(job)
	return h, nil
}

// parts returns what the selected nodes of a job did from each kept report of a host to its next
// one. The counters in a host's first kept report are left out: they are older than the hour.
func (c *Curves) parts(job string, of history.Selection) (parts []history.Part) {
	if c.Kept == nil {
		return nil
	}
	// The names are copied out, so that Note does not wait for the reports below to be compared.
	c.mu.Lock()
	names := allNames(slices.Collect(maps.Values(c.before)))[job]
	c.mu.Unlock()
	type last struct {
		report *api.HostReport
		at     time.Time
	}
	byHost := map[string]last{}
	reports, at := c.Kept()
	for i, r := range reports {
		before, known := byHost[r.GetHost()]
		// Reports come in order for each host.
		byHost[r.GetHost()] = last{r, at[i]}
		if !known {
			continue
		}
		if before.report.GetIncarnation() != r.GetIncarnation() {
			before.report = nil // its agent has begun since: all of it is new
		}
		now := jobOf(r, job)
		if now == nil {
			continue
		}
		g := &gain{names: names, of: of, steps: map[string]float64{}, servers: map[string]float64{}}
		g.addReport(now, jobOf(before.report, job), 1, 1)
		parts = append(parts, history.Part{From: before.at, To: at[i], Steps: g.steps, Servers: g.servers, Micros: g.micros, Counts: g.counts})
	}
	slices.SortFunc(parts, func(a, b history.Part) int { return a.From.Compare(b.From) })
	return parts
}

// See notes what has changed of the jobs of reports, the newest of each host: whether they stand
// still, and which measures hold by what proxies say (see [State].Measures).
func (c *Curves) See(now time.Time, reports []*api.HostReport, hosts [][]measure.Line) {
	states := map[string]map[string]bool{}
	for _, r := range reports {
		for _, j := range r.GetJobs() {
			if states[j.GetJob()] == nil {
				states[j.GetJob()] = map[string]bool{}
			}
			states[j.GetJob()][j.GetState()] = true
		}
	}
	for job, has := range states {
		state := page.Running
		if has[page.Stalled] && !has[page.Running] {
			state = page.Stalled
		}
		var all [][]measure.Line
		for _, lines := range hosts {
			all = append(all, measure.Of(lines, job, len(states) == 1))
		}
		c.log.See(job, now, page.SeenOf(state, measure.Sum(all...)))
	}
}
