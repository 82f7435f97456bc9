package agent

import (
	"math"
	"slices"
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/agent/report"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/planner/api"
)

// Bounds of a report.
const (
	reportBlocks = 256
	reportHot    = 256
	reportSkew   = 128
	// Windows of uses, key by key. After a worker has turned to other keys, one is reported
	// after windowSoon; the interval then doubles up to windowEvery. A window has at most
	// windowHot keys, half of them the most used ones. At windowKeyBytes each, they take at
	// most windowShare of what the job itself moves, but windowLeast keys are always allowed.
	windowSoon     = 400 * time.Millisecond
	windowEvery    = 16 * windowSoon
	windowHot      = 1 << 14
	windowLeast    = 8192
	windowKeyBytes = 12
	windowShare    = 0.02
	// Distributions of latency, 200 bytes to 2 KB each, are reported for at most
	// reportLatencies workers, and servers. In large jobs each host reports some only, at least
	// leastLatencies, so that all hosts together stay near latenciesOfAll.
	reportLatencies = 1024
	leastLatencies  = 64
	latenciesOfAll  = 1 << 16
	// Every host reports all nodes of a job with at most reportNodes; of a larger job it
	// reports its own.
	reportNodes = 512
)

// Reports returns a report of each job, light ones or whole ones.
func (a *Agent) Reports(light bool) []*api.JobReport {
	var reports []*api.JobReport
	for _, v := range a.observer.Jobs() {
		if a.shows(v.Job.Scheduler.String()) {
			r := jobReport(&v, a.opts.Pod, a.now(), light)
			a.mu.Lock()
			lost, finding := a.unsynced[r.Job], a.findings[r.Job]
			a.mu.Unlock()
			reportStalls(r, &finding)
			a.reportCalled(r)
			// Two views of the same connections, of the observer and of the kernel. Each misses
			// some, and adding them up would count most twice.
			r.Connections.Unsynced = max(r.Connections.Unsynced, uint32(lost.connections))
			r.Connections.MissedBytes = max(r.Connections.MissedBytes, lost.missed)
			reports = append(reports, r)
		}
	}
	return reports
}

// reportCalled adds the job's name as its processes claim it, and its owner's wishes.
func (a *Agent) reportCalled(r *api.JobReport) {
	j, ok := a.called.claim(r.GetJob())
	if !ok {
		return
	}
	r.Move, r.Remarks = j.move, j.wrong
	// Only while it runs: the planner would otherwise take a job that is over for one that
	// still holds its name.
	if j.running {
		r.RunningSinceUnixNanos = j.since
	}
	if c := j.claim; j.named {
		r.Claim = &api.Claim{Tenant: c.Tenant, Name: c.Name, From: c.From.String(), Role: c.Role, Authority: c.Authority}
	}
}

// HostReport returns the report of this host for the planner, with windows if they are due;
// taking a window starts the next one, so the report must be sent. The sender adds the host's
// name.
func (a *Agent) HostReport(w report.Wanted) *api.HostReport {
	me := a.self()
	r := &api.AgentReport{
		Version: me.Version, StartedUnixNanos: me.Started.UnixNano(), CpuPercent: me.CPUPercent, KernelPercent: me.KernelPercent,
		CpuSeconds: me.CPUSeconds, MemoryBytes: me.MemoryBytes, SampledOneIn: me.Sampling.OneIn,
	}
	// Losses only. The rest is on the agent's own page.
	for _, c := range me.Counters {
		if c.Class == page.Lost && c.Events+c.Bytes > 0 {
			r.Lost = append(r.Lost, &api.Loss{Reason: c.Reason, Help: c.Help, Events: c.Events, Bytes: c.Bytes})
		}
	}
	if used, err := a.usage(); err == nil {
		used.report(r)
	}
	all := &api.HostReport{Agent: r, Jobs: a.Reports(w.Light), Light: w.Light}
	if a.opts.Machine != nil {
		m := a.opts.Machine()
		all.Machine = &api.Machine{LinkMbit: m.LinkMbit, LinkSource: m.LinkSource, Cores: uint32(m.Cores)}
	}
	due, hurried := a.windowDue()
	if !due {
		return all
	}
	pause := a.paced(&a.windowPace, func() {
		for _, j := range all.GetJobs() {
			if v, ok := a.observer.Job(j.GetJob()); ok {
				j.Window = windowReport(v.Job.Sums.TakeWindow(a.windowKeys(j, w.WindowKeys)), v.WorkersByIndex, hurried)
			}
		}
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.windows = pause
	return all
}

// PaceReports returns a function that does the work of a report and returns when the next is due:
// after [report.Every], or later where reports take too much of --cpu-budget.
func (a *Agent) PaceReports() func(work func()) time.Duration {
	p := pace{least: report.Every, share: 0.2}
	return func(work func()) time.Duration { return a.paced(&p, work) }
}

// Urgent reports whether a report should be sent before the next one is due: a worker has just
// turned to other keys, or did so recently and the short interval is over.
func (a *Agent) Urgent() bool {
	shifted := a.observer.Shifted()
	a.mu.Lock()
	defer a.mu.Unlock()
	// The first window after a shift is short. The ones after it confirm it, at growing
	// intervals.
	if wait := time.Since(a.windowed); shifted && wait >= windowSoon || a.pace < windowEvery && wait >= a.pace {
		if shifted {
			a.pace = windowSoon
		}
		return true
	}
	return false
}

// windowDue reports whether windows are to be reported now, and whether that is sooner than
// usual. If so it doubles the interval until the next time.
func (a *Agent) windowDue() (due, hurried bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	hurried = a.pace < windowEvery
	if wait := time.Since(a.windowed); wait < a.pace || !hurried && wait < a.windows {
		return false, false
	}
	a.windowed, a.pace = time.Now(), min(2*a.pace, windowEvery)
	return true, hurried
}

// windowKeys returns the number of keys for a job's window: in proportion to what the job has
// moved since the last one, and at most what the planner wants (0: no bound).
func (a *Agent) windowKeys(j *api.JobReport, wanted int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.told == nil {
		a.told = map[string]uint64{}
	}
	// Totals start over with a run.
	moved := j.GetBytes() - min(a.told[j.GetJob()], j.GetBytes())
	// Counted from the last window and not over time, so that a window after a pause may be
	// larger.
	a.told[j.GetJob()] = j.GetBytes()
	keys := min(max(int(windowShare*float64(moved)/windowKeyBytes), windowLeast), windowHot)
	if wanted > 0 {
		keys = min(keys, wanted)
	}
	return keys
}

// windowReport converts a window to its message; nil stays nil. hurried marks it as one of the
// first after a shift. Equal value sizes are sent once.
func windowReport(w *counts.Window, names []string, hurried bool) *api.Window {
	if w == nil {
		return nil
	}
	r := &api.Window{FirstUnixNanos: w.First, LastUnixNanos: w.Last, Keys: w.Keys, ValueBytes: w.Sizes, LeftOut: w.LeftOut, Shifted: w.Shifted || hurried}
	if len(w.Sizes) > 0 && len(slices.Compact(slices.Clone(w.Sizes))) == 1 {
		r.ValueBytes = w.Sizes[:1]
	}
	for _, worker := range w.Workers {
		if worker.Worker >= len(names) || names[worker.Worker] == "" {
			continue // its rank is not known yet
		}
		u := &api.WindowUse{Worker: names[worker.Worker], Steps: uint32(worker.Steps), Pulled: worker.Pulled, Pushed: worker.Pushed}
		for _, use := range worker.Uses {
			u.Keys, u.Pulls, u.Pushes = append(u.Keys, use.Key), append(u.Pulls, use.Pulls), append(u.Pushes, use.Pushes)
		}
		r.Uses = append(r.Uses, u)
	}
	return r
}

// SetPlanner sets where the agent gets the state of its link to a planner.
func (a *Agent) SetPlanner(state func() *page.Planner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.planner = state
}

// jobReport returns the report of a job; pod, which may be nil, names pods. A light report
// leaves out the large parts.
func jobReport(v *observe.JobView, pod func(uid string) (page.Pod, bool), now time.Time, light bool) *api.JobReport {
	size := v.Job.Sums.Table.SizeSoFar()
	if !light { // somebody looks
		size = v.Job.Sums.Table.Size()
	}
	totals, all := v.Job.Sums.Totals(), v.Job.Sums.All()
	recent := v.Job.Sums.Lately(now.UnixNano(), recently)
	end := now.Truncate(time.Second)
	// Whole seconds, so that the planner can add up the rates of several hosts.
	begin := end.Add(-time.Duration(recent.Seconds * float64(time.Second)))
	r := &api.JobReport{
		Job: v.Job.Scheduler.String(), Dialect: v.Dialect.String(), NodeTable: v.Table,
		Servers: uint32(v.Servers), Workers: uint32(v.Workers),
		SampledOneIn: max(v.SampledOneIn, 1), Exact: size.Exact() && v.SampledOneIn <= 1,
		DistinctKeys: size.Keys, Bytes: totals.Bytes, LeftHostBytes: totals.LeftHost,
		FirstUnixNanos: v.First, LastUnixNanos: v.Last, RepeatedBytes: totals.Repeated,
		Recent: &api.Recent{FirstUnixNanos: begin.UnixNano(), LastUnixNanos: end.UnixNano(), Bytes: recent.Bytes},
		Connections: &api.Connections{
			Synced: uint32(v.Synced), Unsynced: uint32(v.Unsynced), Unplaced: uint32(v.Unplaced), MissedBytes: v.Missed,
		},
		Sketch: &api.Sketch{
			Exact: size.Exact(), Blocks: uint64(size.Blocks), FoldedBlocks: uint64(size.FoldedBlocks),
			MemoryBytes: uint64(size.MemoryBytes), Bound: size.SketchBound, Percent: size.SketchPercent,
		},
	}
	for _, n := range v.Nodes {
		// Nodes of other hosts are reported by those hosts.
		if n.Process.PID == 0 && (light || len(v.Nodes) > reportNodes) {
			continue
		}
		node := &api.Node{Name: n.Name, Role: n.Role, Rank: int32(n.Rank), Local: n.Process.PID != 0}
		if n.Address.IsValid() {
			node.Address = n.Address.String()
		}
		if p := podOf(pod, n.Process.Pod); p != nil {
			node.Pod = &api.Pod{Namespace: p.Namespace, Name: p.Name, Node: p.Node}
		}
		r.Nodes = append(r.Nodes, node)
	}
	workers := order(v.WorkersByIndex)
	for _, w := range workers {
		if w < len(all.Steps) && all.Steps[w] > 0 {
			steps := &api.Steps{Worker: v.WorkersByIndex[w], Steps: all.Steps[w], Timestamp: all.Timestamps[w]}
			if w < len(recent.Steps) {
				steps.Recent = recent.Steps[w]
			}
			r.Steps = append(r.Steps, steps)
		}
	}
	if !light {
		reportLarge(r, v, workers, &all)
	}
	return r
}

// reportLarge adds the parts that light reports leave out.
func reportLarge(r *api.JobReport, v *observe.JobView, workers []int, all *counts.View) {
	begin := 0 // where this host's share of the latencies begins: each host starts at a rank of its own
	for _, n := range r.GetNodes() {
		if n.GetLocal() && n.GetRank() >= 0 {
			begin = int(n.GetRank())
		}
	}
	r.ByWorker, r.ByServer = latencies(all.ByWorker, v.WorkersByIndex, begin), latencies(all.ByServer, v.ServersByIndex, begin)
	reportUses(r, v, workers, r.GetSketch().GetExact())
	for _, w := range workers {
		for s, server := range v.ServersByIndex {
			if p := pairOf(all, w, s); server != "" && p.ToServer+p.ToWorker > 0 {
				r.Traffic = append(r.Traffic, &api.Traffic{
					Worker: v.WorkersByIndex[w], Server: server,
					ToServer: p.ToServer, ToWorker: p.ToWorker, Requests: p.Requests,
				})
			}
		}
	}
	hot := hottest(v, reportHot)
	for _, k := range hot.Hottest {
		r.Hottest = append(r.Hottest, &api.HotKey{
			Key: uint64(k.Key), Accesses: k.Accesses, Bytes: k.Bytes, Workers: k.Workers,
			Pulls: k.Pulls, Pushes: k.Pushes, Estimated: k.Estimated,
		})
	}
	for i, p := range hot.Skew {
		// Fewer points of a curve that bends down lie below it, never above.
		if each := (len(hot.Skew) + reportSkew - 1) / reportSkew; i%each == 0 || i == len(hot.Skew)-1 {
			r.Skew = append(r.Skew, &api.SkewPoint{Keys: p.Keys, Accesses: p.Accesses})
		}
	}
}

// reportStalls adds the diagnosis.
func reportStalls(r *api.JobReport, found *stallFinding) {
	r.State, r.Cause, r.What = found.State, found.Cause, found.Text
	if !found.Since.IsZero() {
		r.SinceUnixNanos = found.Since.UnixNano()
	}
	for i := range found.Stalls {
		s := &found.Stalls[i]
		r.Stalls = append(r.Stalls, &api.Stall{
			Kind: s.Kind, Who: s.Who, On: s.On, SinceUnixNanos: s.Since.UnixNano(), Keys: s.Keys, Bytes: s.Bytes, Why: s.Why, Text: s.Text(),
		})
	}
}

// latencies returns the distributions that are not empty, from index begin on and around. Those
// beyond the bound are merged into one without a name. Nodes that appeared after names was made
// are left to the next report.
func latencies(all []*history.Latency, names []string, begin int) []*api.Latency {
	var list []*api.Latency
	var rest history.Latency
	put := func(name string, l *history.Latency) {
		if micros, counts := l.Bars(); len(micros) > 0 {
			list = append(list, &api.Latency{Name: name, Micros: micros, Counts: counts})
		}
	}
	known := min(len(all), len(names))
	most := min(max(latenciesOfAll/max(known, 1), leastLatencies), reportLatencies)
	if known <= most {
		begin = 0
	}
	for n := range known {
		i := (begin + n) % known
		if len(list) == most {
			rest.Merge(all[i])
		} else {
			put(names[i], all[i])
		}
	}
	put("", &rest)
	return list
}

// reportUses adds the uses by block of keys. As long as every key is counted one by one, the
// blocks are of the kind that nests, so that the planner can add those of several hosts; folded
// blocks are reported as they are.
func reportUses(r *api.JobReport, v *observe.JobView, workers []int, exact bool) {
	table := v.Job.Sums.Table
	blocks := table.Blocks(0, math.MaxUint64, reportBlocks)
	if exact {
		blocks = blocks[:0]
		firsts := table.Firsts(reportBlocks)
		for i, first := range firsts {
			last := uint64(math.MaxUint64)
			if i+1 < len(firsts) {
				last = firsts[i+1] - 1
			}
			for _, b := range table.Blocks(first, last, 1) {
				b.First, b.Last = first, last
				blocks = append(blocks, b)
			}
		}
	}
	for _, b := range blocks {
		r.Blocks = append(r.Blocks, &api.Block{First: b.First, Last: b.Last, Keys: b.Keys})
	}
	for _, w := range workers {
		u := &api.Use{Worker: v.WorkersByIndex[w]}
		for _, b := range blocks {
			var s counts.Sums
			if w < len(b.Workers) {
				s = b.Workers[w]
			}
			u.Pulls = append(u.Pulls, s[counts.Pulls])
			u.Pushes = append(u.Pushes, s[counts.Pushes])
			u.PulledBytes = append(u.PulledBytes, s[counts.PulledBytes])
			u.PushedBytes = append(u.PushedBytes, s[counts.PushedBytes])
		}
		r.Uses = append(r.Uses, u)
	}
}
