package agent

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// recently is the period over which rates are computed.
const recently = 10 * time.Second

// Ready implements page.State.
func (a *Agent) Ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ready
}

// Jobs implements page.State.
func (a *Agent) Jobs() []page.Job {
	var jobs []page.Job
	for _, v := range a.observer.Jobs() {
		if a.shows(v.Job.Scheduler.String()) {
			jobs = append(jobs, a.job(&v))
		}
	}
	return jobs
}

// shows reports whether a job, given by its scheduler's address, is to be shown.
func (a *Agent) shows(job string) bool {
	// Users may name a job by its address or by what it is called.
	return len(a.opts.Jobs) == 0 || slices.Contains(a.opts.Jobs, job) || slices.Contains(a.opts.Jobs, a.called.title(job).Name)
}

// Scheduler implements page.Namer.
func (a *Agent) Scheduler(name string) string {
	if scheduler, ok := a.called.scheduler(name); ok {
		return scheduler
	}
	return name
}

// view returns the view of a job, given by its scheduler's address. The error is page.ErrNoJob
// if it is unknown or not shown.
func (a *Agent) view(job string) (observe.JobView, error) {
	v, ok := a.observer.Job(job)
	if !ok || !a.shows(job) {
		return v, fmt.Errorf("%w: %q", page.ErrNoJob, job)
	}
	return v, nil
}

// job converts a view to the page's form, with rates, diagnosis and measures.
func (a *Agent) job(v *observe.JobView) page.Job {
	name := v.Job.Scheduler.String()
	size, totals := v.Job.Sums.Table.Size(), v.Job.Sums.Totals()
	recent := v.Job.Sums.Lately(a.now().UnixNano(), recently)
	a.mu.Lock()
	// Copied together, so that what the page shows of a job is of one moment of the diagnosis.
	lost, finding, blind := a.unsynced[name], a.findings[name], a.blind
	a.mu.Unlock()
	j := page.Job{
		Name: name, Servers: v.Servers, Workers: v.Workers,
		FirstSeen: time.Unix(0, v.First), LastSeen: time.Unix(0, v.Last),
		Accesses: size.Total[0] + size.Total[1], DistinctKeys: size.Keys,
		Exact: size.Exact() && v.SampledOneIn <= 1, SampledOneIn: max(v.SampledOneIn, 1),
		Bytes: totals.Bytes, LeftHostBytes: totals.LeftHost,
		Latency:    latency(v.Job.Sums.All().Latency),
		Stragglers: []string{},
		Connections: page.Connections{
			// The observer knows only streams from which a batch has come; the kernel's table
			// has the silent ones too. Each may know more than the other.
			Synced: v.Synced, Unsynced: max(v.Unsynced, lost.connections),
			Missed: max(v.Missed, lost.missed), Unplaced: v.Unplaced,
		},
	}
	a.call(&j)
	if v.Unread > 0 {
		j.Remarks = append(j.Remarks, unread(v))
	}
	j.Sampling = a.sampling(v, name)
	if v.Dialect != 0 {
		j.Dialect = v.Dialect.String()
	}
	// A job that is over has nothing left to miss.
	if blind != "" && finding.State != page.Over {
		j.Remarks = append(j.Remarks, blind)
	}
	if finding.State != page.Over {
		// The median, so that one straggler or one worker that has just joined does not set the
		// rate of the job.
		j.StepsPerSecond = float64(recent.MedianSteps()) / recent.Seconds
		j.BytesPerSecond = float64(recent.Bytes) / recent.Seconds
	}
	j.State, j.Since, j.Cause, j.What = finding.State, finding.Since, finding.Cause, finding.Text
	j.Stalls = a.stalls(&finding)
	for _, s := range finding.Stalls {
		if s.Kind == page.Straggling {
			j.Stragglers = append(j.Stragglers, s.Who)
		}
	}
	for _, n := range v.Nodes {
		node := page.Node{
			Name: n.Name, Role: n.Role, Rank: n.Rank, RankFrom: n.RankFrom, Local: n.Process.PID != 0,
			PID: n.Process.PID, Pod: n.Process.Pod, Container: n.Process.Container,
		}
		node.PodName = podOf(a.opts.Pod, n.Process.Pod)
		if n.Address.IsValid() {
			node.Address = n.Address.String()
		}
		j.Nodes = append(j.Nodes, node)
	}
	// Last, since advice depends on what has been found out about the job above.
	j.Measures = a.measures(v, &j)
	return j
}

// unread describes the part of a job's traffic that cannot be read.
func unread(v *observe.JobView) string {
	if v.Fork == pslite.NoFork {
		return fmt.Sprintf("%d connections, counting each direction, carry messages of an unsupported PS-lite dialect, possibly a fork: they pass unmodified and are not counted", v.Unread)
	}
	return fmt.Sprintf("%d connections, counting each direction, carry messages of %v, an unsupported PS-lite fork: they pass unmodified and are not counted", v.Unread, v.Fork)
}

// call fills in a job's name, where it comes from, and complaints about its settings.
func (a *Agent) call(j *page.Job) {
	claim, _ := a.called.claim(j.Name)
	if j.Remarks = a.called.remarks(j.Name); claim.named {
		j.Called, j.CalledFrom = a.called.title(j.Name).Name, claim.claim.From.String()
	}
}

// stalls converts the diagnosis to the page's form.
func (a *Agent) stalls(found *stallFinding) []page.Stall {
	list := []page.Stall{}
	now := a.now()
	for i := range found.Stalls {
		s := &found.Stalls[i]
		list = append(list, page.Stall{
			Kind: s.Kind, Who: s.Who, On: s.On, Since: s.Since, Seconds: now.Sub(s.Since).Seconds(),
			Keys: s.Keys, Bytes: s.Bytes, Why: s.Why, Text: s.Text(),
		})
	}
	return list
}

// sampling returns how the job is sampled, and how precise its counts are.
func (a *Agent) sampling(v *observe.JobView, name string) *page.JobSampling {
	s := coverage(v)
	s.OneIn, s.Window = a.opts.Sampling.OneIn, a.opts.Sampling.Window
	a.mu.Lock()
	defer a.mu.Unlock()
	if d, ok := a.decided.Jobs[name]; ok {
		s.CostPercent = d.Percent
		// Without a budget the decision is only a measurement of the cost.
		if a.opts.Sampling.Budget > 0 {
			s.OneIn, s.Window, s.AtFloor = d.OneIn, d.Window, d.AtFloor
		}
	}
	return s
}

// coverage returns how many of the job's requests were sampled. ErrorPercent is that of a count
// of 1000 uses.
func coverage(v *observe.JobView) *page.JobSampling {
	s := &page.JobSampling{Requests: v.Looked.Requests, Sampled: v.Looked.Sampled, Estimated: v.Looked.Estimated, Spread: v.Looked.Spread}
	// Half of them pulls and half pushes; 10 of a thousand are one percent.
	s.ErrorPercent = s.UsesError(500, 500) / 10
	return s
}

// podOf returns the name of a pod, nil if it is unknown.
func podOf(name func(uid string) (page.Pod, bool), uid string) *page.Pod {
	if name == nil || uid == "" {
		return nil
	}
	if pod, ok := name(uid); ok {
		return &pod
	}
	return nil
}

// latency converts a distribution in microseconds to figures in seconds.
func latency(l *history.Latency) page.Latency {
	h := l.Histogram()
	seconds := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1e6 }
	return page.Latency{
		Count: uint64(h.TotalCount()), Mean: h.Mean() / 1e6,
		P50: seconds(50), P90: seconds(90), P99: seconds(99), P999: seconds(99.9), Max: float64(h.Max()) / 1e6,
	}
}

// order returns the indexes of the names that are not empty, in natural order: worker2 before
// worker10.
func order(names []string) []int {
	indices := make([]int, 0, len(names))
	for i, name := range names {
		if name != "" {
			indices = append(indices, i)
		}
	}
	slices.SortStableFunc(indices, func(a, b int) int {
		x, y := names[a], names[b]
		// A name without a number counts as one with 0.
		xs, ys := strings.TrimRight(x, "0123456789"), strings.TrimRight(y, "0123456789")
		xn, _ := strconv.Atoi(x[len(xs):])
		yn, _ := strconv.Atoi(y[len(ys):])
		return cmp.Or(cmp.Compare(xs, ys), cmp.Compare(xn, yn))
	})
	return indices
}

// picked returns the names at the indices, in their order.
func picked(names []string, indices []int) []string {
	out := make([]string, len(indices))
	for i, at := range indices {
		out[i] = names[at]
	}
	return out
}

// during returns what a job did in a range of time; without one, over all time.
func during(sums *counts.Locality, r page.Range) counts.View {
	if r.From.IsZero() && r.To.IsZero() {
		return sums.All()
	}
	// Zero leaves an end open, here as in Between.
	from, to := int64(0), int64(0)
	if !r.From.IsZero() {
		from = r.From.UnixNano()
	}
	if !r.To.IsZero() {
		to = r.To.UnixNano()
	}
	return sums.Between(from, to)
}

// Agent implements page.State.
func (a *Agent) Agent() page.Agent {
	out := a.self()
	if a.opts.Machine != nil {
		m := a.opts.Machine()
		out.Machine = &page.Machine{LinkMbit: m.LinkMbit, LinkSource: m.LinkSource, Cores: m.Cores}
	}
	out.Proxy = a.opts.WithProxy
	if a.opts.Adoption != nil {
		out.Adoption = a.opts.Adoption()
	}
	out.Programs = a.programs()
	out.Sketches = []page.Sketch{}
	for _, v := range a.observer.Jobs() {
		out.Sketches = append(out.Sketches, sketch(&v))
	}
	return out
}

// self returns the part of Agent that reports have, which is cheap.
func (a *Agent) self() page.Agent {
	// Two locks one after the other, never both: nobody has to know an order.
	a.cost.mu.Lock()
	out := page.Agent{
		Version: a.opts.Version, Host: a.opts.Host, Started: a.started,
		CPUSeconds: a.cost.cpu, CPUPercent: a.cost.percent, KernelPercent: a.cost.inside,
	}
	a.cost.mu.Unlock()
	out.MemoryBytes = residentBytes()
	a.mu.Lock()
	// A copy, and not nil, so that JSON has a list.
	out.Cgroups = append([]string{}, a.attached...)
	out.Sampling = a.sampled()
	planner := a.planner
	a.mu.Unlock()
	if planner != nil {
		out.Planner = planner()
	}
	out.Counters = a.counters()
	return out
}

// Sendings returns the connections on which this host's processes send.
func (a *Agent) Sendings() []observe.Sending { return a.observer.Sendings() }

// sampled returns the sparsest sampling of all jobs. The caller holds a.mu.
func (a *Agent) sampled() page.Sampling {
	s := page.Sampling{
		OneIn: a.opts.Sampling.OneIn, Window: a.opts.Sampling.Window, Adaptive: a.opts.Sampling.Budget > 0,
		BudgetPercent: a.opts.Sampling.Budget, CostPercent: a.decided.Percent, OverBudget: a.decided.Over, RestOf: a.decided.RestOf,
	}
	if !s.Adaptive || len(a.decided.Jobs) == 0 {
		return s
	}
	s.OneIn = 1
	for _, j := range a.decided.Jobs {
		if j.OneIn >= s.OneIn {
			s.OneIn, s.Window = j.OneIn, j.Window
		}
	}
	return s
}

// programs returns what the capture programs have cost so far. There are no figures unless the
// capture measures them.
func (a *Agent) programs() []page.Program {
	stats, err := a.capture.ProgramStats()
	if err != nil {
		// The page does without them.
		slog.Debug("reading BPF statistics", "error", err)
	}
	list := []page.Program{}
	for _, p := range stats {
		entry := page.Program{Name: p.Program, Runs: p.Runs, Seconds: p.RunTime.Seconds()}
		if p.Runs > 0 {
			entry.NanosPerRun = float64(p.RunTime.Nanoseconds()) / float64(p.Runs)
		}
		list = append(list, entry)
	}
	return list
}

// counters returns what the kernel has counted, followed by what the observer could not count.
func (a *Agent) counters() []page.Counter {
	list := []page.Counter{}
	kernel, err := a.capture.Counts()
	if err != nil {
		slog.Debug("reading the counters", "error", err)
	}
	for i, c := range kernel {
		r := bpf.Reason(i)
		list = append(list, page.Counter{
			Reason: r.String(), Class: r.Class().String(), Help: r.Help(), Events: c.Events, Bytes: c.Bytes,
		})
	}
	m := a.observer.Misses()
	for _, c := range []page.Counter{
		{Reason: "observer_bad_meta", Help: "meta frames of no known dialect", Events: m.BadMetas},
		{Reason: "observer_incomplete", Help: "incomplete messages", Events: m.Incomplete},
		{Reason: "observer_unplaced", Help: "messages with unknown sender or receiver", Events: m.Unplaced, Bytes: m.UnplacedBytes},
		{Reason: "observer_unattributed", Help: "bytes of values that cannot be attributed to keys", Bytes: m.Unattributed},
		{Reason: "processes_left_out", Help: "recent processes with the environment of a node, beyond the limit", Events: a.leftOut.Load()},
		{Reason: "observer_refused", Help: "connections, nodes and jobs beyond the limits", Events: m.Refused},
	} {
		c.Class = page.Lost
		list = append(list, c)
	}
	return list
}

// residentBytes returns the resident memory of this process in bytes; 0 if it cannot be read.
func residentBytes() uint64 {
	// In pages; the second field is the resident set.
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
