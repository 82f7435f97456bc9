// This part is the planner's history of jobs: for each name its last runs, with how
// fast they went and what they moved, so that one can be compared with another.
//
// In come the reports of hosts, looked at every few seconds ([Book.Look]); out go
// [page.Runs]. It is in the planner's store, an entry for each name.

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

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

// Bounds of the state that is kept.
const (
	// maxRunNames is of how many names runs are kept: those that ran last.
	maxRunNames = 256
	// maxRuns is how many runs are kept of a name, the newest.
	maxRuns = 32
	// every is how often reports are looked at.
	every = 2 * time.Second
	// writeEvery is how often a run that goes on is written.
	writeEvery = time.Minute
)

// prefix begins the names of the store's entries, which a job's name ends.
const prefix = "runs/"

// A runBook keeps the runs of jobs. Its methods may be called from any goroutine; Look by
// one at a time.
//
// Invariant: each of live is of the newest run, of its job's scheduler, of its name.
type runBook struct {
	store store.Store
	now   func() time.Time

	mu     sync.Mutex            // guards the rest
	names  map[string][]page.Run // the oldest first
	live   map[string]*runLive   // by scheduler
	unsafe map[string]time.Time  // names whose runs have changed, and since when
}

// runLive is a run that goes on, or was the last of its scheduler's.
type runLive struct {
	name  string
	run   page.Run
	table uint64   // digest of its node table, 0: not known
	past  []uint64 // those of the runs before it, of which some host may still tell
	hosts map[string]*counted
	// Sums of agents that have ended, or of a planner before this one.
	kept tally
}

// maxPast is how many tables of earlier runs are remembered.
const maxPast = 4

// tally has the counters of a run: bytes, those that left their host, and steps.
type tally struct {
	bytes, left uint64
	steps       float64 // of all workers
}

// counted is what a host's agent has counted of a job: now, and at the run's begin.
type counted struct {
	incarnation uint64
	base, now   tally
	workers     map[string]bool // that have made steps
}

// newRunBook returns a book with the runs that the store has. Of what cannot be read it says so.
func newRunBook(ctx context.Context, kept store.Store) (*runBook, error) {
	b := &runBook{store: kept, now: time.Now, names: map[string][]page.Run{}, live: map[string]*runLive{}, unsafe: map[string]time.Time{}}
	err := kept.Each(ctx, func(name string, value []byte) error {
		job, ok := strings.CutPrefix(name, prefix)
		if !ok {
			return nil
		}
		var all []page.Run
		if err := json.Unmarshal(value, &all); err != nil || len(all) == 0 {
			slog.Warn("a job's history cannot be read, and begins anew", "job", job, "error", err)
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

// A runLook is what there is to see at a time.
type runLook struct {
	Reports []*api.HostReport // of hosts that have reported lately
	Titles  map[string]policy.Title
	// Run names the run of a job with a node table of that digest; empty: not known.
	Run func(job string, table uint64) string
}

// runLook takes up what jobs do, and writes what has to be.
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

// follow takes up what hosts report of a job; the caller holds b.mu.
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
			table = 0 // hosts tell of the run before still
		}
		v.run.Running = false
		b.put(v, true)
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
	for _, h := range all {
		v.countHost(h)
	}
	b.put(v, began)
}

// begin returns a run that this book sees for the first time: a new one, or the newest
// that the store has, where it is that; the caller holds b.mu.
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
		if r.Job != job || r.Began.UnixNano() != since && (id == "" || r.ID != id) {
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

func sumsOf(j *api.JobReport) tally {
	s := tally{bytes: j.GetBytes(), left: j.GetLeftHostBytes()}
	for _, w := range j.GetSteps() {
		s.steps += float64(w.GetSteps())
	}
	return s
}

func (s tally) plus(o tally) tally {
	return tally{s.bytes + o.bytes, s.left + o.left, s.steps + o.steps}
}

// minus returns the increase of s since o. o is larger only where an agent restarted.
func (s tally) minus(o tally) tally {
	return tally{s.bytes - min(o.bytes, s.bytes), s.left - min(o.left, s.left), max(s.steps-o.steps, 0)}
}

// countHost takes up what a host reports.
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
		v.kept = v.kept.plus(c.now.minus(c.base))
		c.incarnation, c.base = h.host.GetIncarnation(), tally{}
	}
	c.now = now
	for _, w := range h.job.GetSteps() {
		if w.GetSteps() > 0 {
			c.workers[w.GetWorker()] = true
		}
	}
	r := &v.run
	if last := time.Unix(0, h.job.GetLastUnixNanos()); last.After(r.Last) && last.After(r.Began) {
		r.Last = last
	}
	r.Servers, r.Workers = max(r.Servers, int(h.job.GetServers())), max(r.Workers, int(h.job.GetWorkers()))
}

// earlier is how long before its processes were seen a run may have sent a message.
const earlier = 5 * time.Second

// figure sums up what all hosts have counted of the run.
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

// put has the run stand among those of its name; soon: it is to be written at the next
// occasion. The caller holds b.mu.
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

func (b *runBook) change(name string, soon bool) {
	if _, waits := b.unsafe[name]; !waits {
		b.unsafe[name] = b.now()
	}
	if soon {
		b.unsafe[name] = time.Time{}
	}
}

// rename has the run stand among those of another name: it is known by now, or free.
func (b *runBook) rename(v *runLive, name string) {
	left := slices.DeleteFunc(slices.Clone(b.names[v.name]), func(r page.Run) bool { return r.Job == v.run.Job && r.Began.Equal(v.run.Began) })
	if b.names[v.name] = left; len(left) == 0 {
		delete(b.names, v.name)
	}
	b.change(v.name, true)
	v.name = name
}

// due returns the entries to write now, and forgets names beyond MaxNames.
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

// Runs returns the runs of a name, of all where it is empty; those that ran last first.
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
