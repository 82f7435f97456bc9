package agent

import (
	"math"
	"slices"
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/agent/report"

	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/history"
	"github.com/psidecar/psidecar/planner/api"
)

// Sizes of a report.
const (
	reportBlocks = 256
	reportHot    = 256
	reportSkew   = 128
	// windowSoon is how long after a worker turned to other keys uses are reported
	// key by key, and for how long until the next time, which doubles up to
	// windowEvery. windowHot is of how many keys at most, half of them the most
	// used ones. A key takes windowKeyBytes, and all of them windowShare of what
	// the job itself moves, or windowLeast keys.
	windowSoon     = 400 * time.Millisecond
	windowEvery    = 16 * windowSoon
	windowHot      = 1 << 14
	windowLeast    = 8192
	windowKeyBytes = 12
	windowShare    = 0.02
	// reportLatencies is how many workers, and servers, have distributions of
	// their own, of 200 bytes to 2 KB each; fewer in jobs with many of them, each of
	// whose hosts tells of some: latenciesOfAll are those of all hosts together.
	reportLatencies = 1024
	leastLatencies  = 64
	latenciesOfAll  = 1 << 16
	// reportNodes is of how many nodes a job may have that every host tells of all
	// of them: of more, each host tells of its own.
	reportNodes = 512
)

// Reports returns what there is to report of each job, as for a light report or all.
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
			r.Connections.Unsynced = max(r.Connections.Unsynced, uint32(lost.connections))
			r.Connections.MissedBytes = max(r.Connections.MissedBytes, lost.missed)
			reports = append(reports, r)
		}
	}
	return reports
}

// reportCalled reports what a job's processes say that it is called, and what its owner
// asks for.
func (a *Agent) reportCalled(r *api.JobReport) {
	j, ok := a.called.claim(r.GetJob())
	if !ok {
		return
	}
	r.Move, r.Remarks = j.move, j.wrong
	if j.running {
		r.RunningSinceUnixNanos = j.since
	}
	if c := j.claim; j.named {
		r.Claim = &api.Claim{Tenant: c.Tenant, Name: c.Name, From: c.From.String(), Role: c.Role, Authority: c.Authority}
	}
}

// HostReport returns the report of the wanted kind; the sender adds the host's name.
func (a *Agent) HostReport(w report.Wanted) *api.HostReport {
	me := a.Agent()
	r := &api.AgentReport{
		Version: me.Version, StartedUnixNanos: me.Started.UnixNano(), CpuPercent: me.CPUPercent, KernelPercent: me.KernelPercent,
		CpuSeconds: me.CPUSeconds, MemoryBytes: me.MemoryBytes, SampledOneIn: me.Sampling.OneIn,
	}
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
	for _, j := range all.GetJobs() {
		if v, ok := a.observer.Job(j.GetJob()); ok {
			j.Window = windowReport(v.Job.Sums.TakeWindow(a.windowKeys(j, w.WindowKeys)), v.WorkersByIndex, hurried)
		}
	}
	return all
}

// Urgent reports whether there is something that the planner should hear of
// before the next report is due: workers turned to other keys a moment ago.
func (a *Agent) Urgent() bool {
	shifted := a.observer.Shifted()
	a.mu.Lock()
	defer a.mu.Unlock()
	if wait := time.Since(a.windowed); shifted && wait >= windowSoon || a.pace < windowEvery && wait >= a.pace {
		if shifted {
			a.pace = windowSoon
		}
		return true
	}
	return false
}

// windowDue reports whether uses are to be reported key by key now, and whether
// that is sooner than as a rule. The next time is after twice as long.
func (a *Agent) windowDue() (due, hurried bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.windowed) < a.pace {
		return false, false
	}
	hurried = a.pace < windowEvery
	a.windowed, a.pace = time.Now(), min(2*a.pace, windowEvery)
	return true, hurried
}

// windowKeys returns the number of keys in a job's window, given the planner's
// bound; 0: the planner has set none.
func (a *Agent) windowKeys(j *api.JobReport, wanted int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.told == nil {
		a.told = map[string]uint64{}
	}
	moved := j.GetBytes() - min(a.told[j.GetJob()], j.GetBytes())
	a.told[j.GetJob()] = j.GetBytes()
	keys := min(max(int(windowShare*float64(moved)/windowKeyBytes), windowLeast), windowHot)
	if wanted > 0 {
		keys = min(keys, wanted)
	}
	return keys
}

// windowReport converts a window to its message; nil stays nil. One that is hurried
// is among the first after workers turned to other keys.
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
			continue // the node is not identified yet
		}
		u := &api.WindowUse{Worker: names[worker.Worker], Steps: uint32(worker.Steps), Pulled: worker.Pulled, Pushed: worker.Pushed}
		for _, use := range worker.Uses {
			u.Keys, u.Pulls, u.Pushes = append(u.Keys, use.Key), append(u.Pulls, use.Pulls), append(u.Pushes, use.Pushes)
		}
		r.Uses = append(r.Uses, u)
	}
	return r
}

// SetPlanner makes the agent tell of its link to a planner.
func (a *Agent) SetPlanner(state func() *page.Planner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.planner = state
}

// jobReport reports a job; pod, where not nil, names a pod by its UID. A light report
// lacks the large parts.
func jobReport(v *observe.JobView, pod func(uid string) (page.Pod, bool), now time.Time, light bool) *api.JobReport {
	size, totals, all := v.Job.Sums.Table.Size(), v.Job.Sums.Totals(), v.Job.Sums.All()
	recent := v.Job.Sums.Lately(now.UnixNano(), recently)
	end := now.Truncate(time.Second)
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

// reportLarge adds what light reports leave out.
func reportLarge(r *api.JobReport, v *observe.JobView, workers []int, all *counts.View) {
	begin := 0 // of latencies, where there is no room for all: another host's are others
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

// reportStalls reports whether the job goes on.
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

// latencies returns the distributions that are not empty, from number begin on and
// around; the last of very many as one without a name. Nodes that came while the
// report was made have no name in it yet: the next one has them.
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

// reportUses reports the blocks of keys. Their limits are such that those of
// several hosts nest, as far as every key is counted one by one; folded blocks
// stay as they are.
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
