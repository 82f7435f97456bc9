// This file is the planner's history of jobs: the last runs of each job name, with their speed and
// what they moved, so that a run can be compared with those before it.
//
// [runBook.Look] is called every few seconds with the newest reports; [runBook.Runs] returns the
// history for the page. It is in the planner's store, one entry per name.
//
// What makes it intricate is that nobody announces a run. A run begins when its processes are seen,
// or when the node table of its scheduler changes; hosts report the change one after the other;
// agents restart and then count from zero; and the planner may restart in the middle of it all. So
// a run's figures are sums of differences: for each host the counters now minus those at the run's
// begin, plus what earlier agents have counted.

package planner

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

// Bounds of the state that is kept.
const (
	// maxRunNames is for how many names runs are kept: those that ran last.
	maxRunNames = 256
	// maxRuns is how many runs of a name are kept, the newest.
	maxRuns = 32
	// every is how often reports are looked at.
	every = 2 * time.Second
	// writeEvery is how often a run in progress is written. A planner that is killed loses at most
	// that much of its figures.
	writeEvery = time.Minute
)

// prefix begins the names of the store's entries; the name of the job follows.
const prefix = "runs/"

// A runBook keeps the runs of jobs. Its methods may be called from any goroutine, Look by one at a
// time.
//
// Slices in names are replaced, never changed, since Runs hands them out. Invariant: each entry of
// live is the newest run of its scheduler, and one of the runs of its name.
type runBook struct {
	store store.Store
	now   func() time.Time

	mu sync.Mutex // guards the rest
	// By name, oldest first; no list is empty.
	names map[string][]page.Run
	// By the scheduler's address.
	live map[string]*runLive
	// Names whose runs are not in the store as they are here, and since when; the zero time means
	// that they are to be written at once.
	unsafe map[string]time.Time
}

// A runLive is a run in progress, or the last run of its scheduler.
type runLive struct {
	name string
	run  page.Run
	// The digest of its node table, 0 if unknown.
	table uint64
	// Digests of the runs before, which slow hosts may still report.
	past  []uint64
	hosts map[string]*counted
	// kept is what agents have counted that have restarted since, or what an earlier planner had
	// recorded.
	kept tally
}

// maxPast is how many digests of earlier runs are remembered.
const maxPast = 4

// A tally has the counters of a run: bytes, bytes that left their host, and steps of all workers.
type tally struct {
	bytes, left uint64
	steps       float64 // of all workers
}

// A counted is what one host's agent has counted of a job: base at the run's begin, and now.
type counted struct {
	incarnation uint64
	base, now   tally
	workers     map[string]bool // that have made steps
}

// newRunBook returns a book with the runs in the store. An entry that cannot be decoded is logged
// and dropped.
func newRunBook(ctx context.Context, kept store.Store) (*runBook, error) {
	b := &runBook{store: kept, now: time.Now, names: map[string][]page.Run{}, live: map[string]*runLive{}, unsafe: map[string]time.Time{}}
	err := kept.Each(ctx, func(name string, value []byte) error {
		job, ok := strings.CutPrefix(name, prefix)
		if !ok {
			return nil
		}
		var all []page.Run
		if err := json.Unmarshal(value, &all); err != nil || len(all) == 0 {
			slog.Warn("cannot read a job's history; starting a new one", "job", job, "error", err)
			return nil // plans are in the same store, and matter more
		}
		b.names[job] = all
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the runs of jobs: %w", err)
	}
	return b, nil
}

// A runLook is the input of one Look.
type runLook struct {
	// Reports are of the hosts that have reported lately.
	Reports []*api.HostReport
	Titles  map[string]policy.Title
	// Run returns the name of the job's run with that node table, "" if unknown.
	Run func(job string, table uint64) string
}

// Look updates the runs from reports and writes those that are due to the store, without the lock.
// If that fails they are due again at once.
func (b *runBook) Look(ctx context.Context, l runLook) error {
	b.mu.Lock()
	seen := map[string][]*hostJob{}
	for _, host := range l.Reports {
		for _, j := range host.GetJobs() {
			seen[j.GetJob()] = append(seen[j.GetJob()], &hostJob{host, j})
		}
	}
	for job, all := range seen {
		name := job
		if t, ok := l.Titles[job]; ok {
			name = t.Name
		}
		b.follow(job, name, all, l.Run)
	}
	for job, v := range b.live {
		// No host reports the job any more. Its last figures stand.
		if seen[job] == nil && v.run.Running { // its hosts are gone
			v.run.Running = false
			b.put(v, true)
		}
		if seen[job] == nil && len(b.live) > maxRunNames {
			delete(b.live, job)
		}
	}
	entries := b.due()
	b.mu.Unlock()
	if len(entries) == 0 {
		return nil
	}
	if err := b.store.Write(ctx, entries); err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, e := range entries {
			b.change(strings.TrimPrefix(e.Name, prefix), true)
		}
		return fmt.Errorf("writing the runs of jobs: %w", err)
	}
	return nil
}

// hostJob is what one host reports of a job.
type hostJob struct {
	host *api.HostReport
	job  *api.JobReport
}

// follow updates the run of a job from the reports of its hosts: it begins a run, ends one and
// begins the next, or adds to the present one. The caller holds b.mu.
//
// A new run is recognized by a new node table, or by processes that were started after the last
// message of a run that is over.
func (b *runBook) follow(job, name string, all []*hostJob, named func(string, uint64) string) {
	since, table := int64(0), uint64(0)
	v := b.live[job]
	for _, h := range all {
		if s := h.job.GetRunningSinceUnixNanos(); s > 0 && (since == 0 || s < since) {
			since = s
		}
		// While a new run's table reaches one host after the other there are two.
		if t := h.job.GetNodeTable(); t != 0 && (table == 0 || v != nil && t != v.table) && (v == nil || !slices.Contains(v.past, t)) {
			table = t
		}
	}
	switch {
	case v == nil && since == 0:
		return // it was over when this book began
	case v == nil:
		v = b.begin(job, name, since, table, all, named)
	case v.table != 0 && table != 0 && v.table != table, !v.run.Running && since > v.run.Last.UnixNano():
		if table == v.table {
			table = 0 // some hosts still report the run before
		}
		v.run.Running = false
		b.put(v, true)
		// The base of each host is what it has counted so far. Its agent goes on counting for the
		// scheduler's address and does not distinguish runs.
		next := &runLive{name: name, table: table, past: append(slices.Clone(v.past[max(len(v.past)-maxPast, 0):]), v.table), hosts: map[string]*counted{}, run: page.Run{Job: job, Began: time.Unix(0, max(since, v.run.Last.UnixNano()))}}
		for host, c := range v.hosts {
			next.hosts[host] = &counted{incarnation: c.incarnation, base: c.now, now: c.now, workers: map[string]bool{}}
		}
		v = next
		b.live[job] = v
	}
	if v.table == 0 {
		v.table = table
	}
	if v.name != name {
		b.rename(v, name)
	}
	began := v.run.Running != (since > 0)
	v.run.Running = since > 0
	if v.run.ID == "" && v.table != 0 && named != nil {
		v.run.ID = named(job, v.table)
	}
	for _, h := range all { // what they counted in between is lost
		v.countHost(h)
	}
	b.put(v, began)
}

// sameBegin is by how much two agents' figures of when a process started may differ.
const sameBegin = time.Second

// begin returns the run of a job that this book sees for the first time: a new one, or one in
// progress that an earlier planner has stored, recognized by its begin or its name. In the second
// case the stored figures are the start, and the counters now are the base: what was counted since
// the last write is lost rather than counted twice. The caller holds b.mu.
func (b *runBook) begin(job, name string, since int64, table uint64, all []*hostJob, named func(string, uint64) string) *runLive {
	v := &runLive{name: name, table: table, hosts: map[string]*counted{}, run: page.Run{Job: job, Began: time.Unix(0, since)}}
	b.live[job] = v
	id := ""
	if table != 0 && named != nil {
		id = named(job, table)
	}
	known := b.names[name]
	for i := range known {
		r := &known[i]
		if r.Job != job || time.Unix(0, since).Sub(r.Began).Abs() >= sameBegin && (id == "" || r.ID != id) {
			continue
		}
		v.run = *r
		v.kept = tally{r.Bytes, r.LeftHostBytes, r.Steps * float64(r.Workers)}
		for _, h := range all { // what they counted meanwhile nobody has kept
			now := sumsOf(h.job)
			v.hosts[h.host.GetHost()] = &counted{incarnation: h.host.GetIncarnation(), base: now, now: now, workers: map[string]bool{}}
		}
	}
	return v
}

// sumsOf returns the counters in a job's report.
func sumsOf(j *api.JobReport) tally {
	s := tally{bytes: j.GetBytes(), left: j.GetLeftHostBytes()}
	for _, w := range j.GetSteps() {
		s.steps += float64(w.GetSteps())
	}
	return s
}

// plus returns the sum of s and o.
func (s tally) plus(o tally) tally {
	return tally{s.bytes + o.bytes, s.left + o.left, s.steps + o.steps}
}

// minus returns the increase of s since o. o is larger only if an agent has restarted.
func (s tally) minus(o tally) tally {
	return tally{s.bytes - min(o.bytes, s.bytes), s.left - min(o.left, s.left), max(s.steps-o.steps, 0)}
}

// countHost updates the counters of one host.
func (v *runLive) countHost(h *hostJob) {
	now := sumsOf(h.job)
	c := v.hosts[h.host.GetHost()]
	switch {
	case c == nil:
		c = &counted{incarnation: h.host.GetIncarnation(), workers: map[string]bool{}}
		v.hosts[h.host.GetHost()] = c
		// What the host's agent saw of an earlier run of the scheduler's does not count.
		if h.job.GetFirstUnixNanos() < v.run.Began.Add(-earlier).UnixNano() {
			c.base = now
		}
	case c.incarnation != h.host.GetIncarnation():
		// The agent has restarted and counts from zero. What its predecessor had counted is kept.
		v.kept = v.kept.plus(c.now.minus(c.base))
		c.incarnation, c.base = h.host.GetIncarnation(), tally{}
	}
	c.now = now
	for _, w := range h.job.GetSteps() {
		// The names come from agents, which may report others each time.
		if w.GetSteps() > 0 && len(c.workers) < maxMembers {
			c.workers[w.GetWorker()] = true
		}
	}
	r := &v.run
	if last := time.Unix(0, h.job.GetLastUnixNanos()); last.After(r.Last) && last.After(r.Began) {
		r.Last = last
	}
	r.Servers, r.Workers = max(r.Servers, int(h.job.GetServers())), max(r.Workers, int(h.job.GetWorkers()))
}

// earlier is how long before its processes were seen a run may have sent a message: agents look for
// processes periodically.
const earlier = 5 * time.Second

// figure computes the run's figures from the counters of all hosts.
func (v *runLive) figure() {
	all, workers := v.kept, map[string]bool{}
	for _, c := range v.hosts {
		all = all.plus(c.now.minus(c.base))
		maps.Copy(workers, c.workers)
	}
	r := &v.run
	r.Bytes, r.LeftHostBytes = all.bytes, all.left
	r.Steps, r.StepsPerSecond, r.BytesPerStep = 0, 0, 0
	if n := max(r.Workers, len(workers)); n > 0 {
		r.Steps = all.steps / float64(n)
	}
	if span := r.Last.Sub(r.Began).Seconds(); span > 0 {
		r.StepsPerSecond = r.Steps / span
	}
	if r.Steps > 0 {
		r.BytesPerStep = float64(r.Bytes) / r.Steps
	}
}

// put enters the run among those of its name and computes its figures. soon makes it due at once; a
// new run always is. The caller holds b.mu.
func (b *runBook) put(v *runLive, soon bool) {
	v.figure()
	all := b.names[v.name]
	at := slices.IndexFunc(all, func(r page.Run) bool { return r.Job == v.run.Job && r.Began.Equal(v.run.Began) })
	if at >= 0 && all[at] == v.run {
		return
	}
	all = slices.Clone(all) // others may read it
	if at >= 0 {
		all[at] = v.run
	} else {
		all = append(all, v.run)
		slices.SortStableFunc(all, func(x, y page.Run) int { return x.Began.Compare(y.Began) })
		soon = true
	}
	b.names[v.name] = all[max(len(all)-maxRuns, 0):]
	b.change(v.name, soon)
}

// change marks the runs of a name as different from the store.
func (b *runBook) change(name string, soon bool) {
	if _, waits := b.unsafe[name]; !waits {
		b.unsafe[name] = b.now()
	}
	if soon {
		b.unsafe[name] = time.Time{}
	}
}

// rename moves the run to another name. The name of a job may become known only after its run has
// begun, and may be given up.
func (b *runBook) rename(v *runLive, name string) {
	left := slices.DeleteFunc(slices.Clone(b.names[v.name]), func(r page.Run) bool { return r.Job == v.run.Job && r.Began.Equal(v.run.Began) })
	if b.names[v.name] = left; len(left) == 0 {
		delete(b.names, v.name)
	}
	b.change(v.name, true)
	v.name = name
}

// due returns the entries to write now, and drops names beyond maxRunNames, those whose last run
// ended first.
func (b *runBook) due() (entries []store.Entry) {
	for len(b.names) > maxRunNames {
		last := func(name string) time.Time { all := b.names[name]; return all[len(all)-1].Last }
		oldest := slices.MinFunc(slices.Sorted(maps.Keys(b.names)), func(x, y string) int { return last(x).Compare(last(y)) })
		delete(b.names, oldest)
		b.change(oldest, true)
	}
	now := b.now()
	for _, name := range slices.Sorted(maps.Keys(b.unsafe)) {
		if since := b.unsafe[name]; now.Sub(since) < writeEvery {
			continue
		}
		delete(b.unsafe, name)
		e := store.Entry{Name: prefix + name}
		if all := b.names[name]; len(all) > 0 {
			text, err := json.Marshal(all)
			if err != nil {
				panic(err) // numbers, times and texts only; figures are finite
			}
			e.Value = text
		}
		entries = append(entries, e)
	}
	return entries
}

// Runs returns the runs of a name, newest first, or of all names if name is "", those that began
// last first.
func (b *runBook) Runs(name string) page.Runs {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := page.Runs{Jobs: []page.NamedRuns{}}
	for n, all := range b.names {
		if name == "" || n == name {
			own := slices.Clone(all)
			slices.Reverse(own)
			r.Jobs = append(r.Jobs, page.NamedRuns{Name: n, Runs: own})
		}
	}
	slices.SortFunc(r.Jobs, func(x, y page.NamedRuns) int {
		return cmp.Or(y.Runs[0].Began.Compare(x.Runs[0].Began), strings.Compare(x.Name, y.Name))
	})
	return r
}
