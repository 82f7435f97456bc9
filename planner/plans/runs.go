package plans

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/store"
)

const (
	// keepRuns is how many runs of a job are kept; of older ones those that
	// some proxy carries.
	keepRuns = 4
	// maxRunning is how many runs a proxy may carry.
	maxRunning = 4096
)

// runKey names a run of a job. Its run is empty for plans of jobs whose runs
// nobody has named, since no proxy watches.
type runKey struct {
	job string
	run plan.Run
}

func (k runKey) compare(o runKey) int {
	return cmp.Or(cmp.Compare(k.job, o.job), cmp.Compare(k.run, o.run))
}

// beginRun registers a run that a proxy carries: it is new, or its stored state
// must agree with the proxy's.
func (s *Service) beginRun(ctx context.Context, r *api.Running) {
	run := plan.Run(r.GetRun())
	if !run.Valid() {
		return
	}
	s.mu.Lock()
	known := s.runs[runKey{r.GetJob(), run}] != nil
	s.mu.Unlock()
	if !known && !r.GetUsed() && r.GetStore() != "" {
		return // it has ended, and was forgotten
	}
	j, err := s.openRun(ctx, runKey{r.GetJob(), run}, int(r.GetServers()))
	if err != nil {
		s.opts.Log.Warn("a run gets no plans", "job", r.GetJob(), "run", run, "error", err)
		return
	}
	j.checkSeen(r.GetStore(), r.GetVersion())
}

// checkSeen finds out whether the store was lost: whether it lacks what a proxy
// has seen.
func (j *job) checkSeen(id string, version uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone || id == "" {
		return
	}
	if j.lost != nil || !slices.Contains(j.lineage(), id) || version > j.version {
		j.lose(id, version)
	}
}

// openRun returns a run, new if need be. A new one that is the job's newest is
// what the job's name means from then on.
func (s *Service) openRun(ctx context.Context, k runKey, servers int) (*job, error) {
	if k.job == "" || len(k.job) > 256 {
		return nil, fmt.Errorf("job %.300q: want its scheduler's host:port", k.job)
	}
	if servers < 1 || servers > MaxServers {
		return nil, fmt.Errorf("job %s has %d servers: want 1 to %d", k.job, servers, MaxServers)
	}
	s.mu.Lock()
	j := s.runs[k]
	if j != nil {
		s.mu.Unlock()
		return j, nil
	}
	if s.jobs[k.job] == nil && len(s.jobs) >= MaxJobs {
		victim := s.idlest()
		if victim == "" {
			s.mu.Unlock()
			return nil, fmt.Errorf("%d jobs have plans already: drop those that have ended (psidecar plan forget)", MaxJobs)
		}
		old := s.runsOf(victim)
		s.mu.Unlock()
		if err := s.dropRuns(ctx, old); err != nil {
			return nil, err
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if j = s.runs[k]; j != nil {
		return j, nil
	}
	j = newJob(s, k, servers)
	s.runs[k] = j
	if newest := s.jobs[k.job]; newest == nil || newest.run < k.run {
		s.jobs[k.job] = j
	}
	return j, nil
}

// runsOf returns a job's runs, the oldest first; the caller holds s.mu.
func (s *Service) runsOf(name string) (runs []*job) {
	for k, j := range s.runs {
		if k.job == name {
			runs = append(runs, j)
		}
	}
	slices.SortFunc(runs, func(a, b *job) int { return cmp.Compare(a.run, b.run) })
	return runs
}

// idlest returns the job that began the longest ago and that no proxy carries,
// empty where there is none; the caller holds s.mu.
func (s *Service) idlest() (name string) {
	for job, j := range s.jobs {
		if j.run == "" || s.carried(j.key()) {
			continue
		}
		if name == "" || j.run < s.jobs[name].run {
			name = job
		}
	}
	return name
}

// carried reports whether some proxy carries the run; the caller holds s.mu.
func (s *Service) carried(k runKey) bool {
	for w := range s.watchers {
		if w.runs[k] != nil {
			return true
		}
	}
	return false
}

// carries is an error where a host does not carry a run, as its proxy's Watch says:
// what it knows of the run is nothing then. A caller without named hosts may speak
// for any, else it would have been refused before.
func (s *Service) carries(host string, k runKey) error {
	if host == "" || k.run == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watching[strings.ToLower(host)] {
		if w.runs[k] != nil {
			return nil
		}
	}
	return fmt.Errorf("job %s: the proxy on %.300q does not watch its run %s, and has no say in it", k.job, host, k.run)
}

// used returns whether some host has connections of the run.
func (s *Service) used(k runKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		if w.runs[k].GetUsed() {
			return true
		}
	}
	return false
}

// prune drops old runs of a job that no proxy carries. What cannot be removed
// from the store now is removed when the job runs the next time.
func (s *Service) prune(ctx context.Context, name string) {
	s.mu.Lock()
	runs := s.runsOf(name)
	var old []*job
	for i, j := range runs {
		if i < len(runs)-keepRuns && !s.carried(j.key()) {
			old = append(old, j)
		}
	}
	s.mu.Unlock()
	if len(old) == 0 {
		return
	}
	if err := s.dropRuns(ctx, old); err != nil {
		s.opts.Log.Warn("removing the plans of old runs", "job", name, "error", err)
	}
}

// dropRuns drops runs, from the store first.
func (s *Service) dropRuns(ctx context.Context, runs []*job) error {
	keys := map[runKey]bool{}
	for _, j := range runs {
		keys[j.key()] = true
	}
	var entries []store.Entry
	err := s.store.Each(ctx, func(name string, _ []byte) error {
		if k, _, ok := cutName(name); ok && keys[k] {
			entries = append(entries, store.Entry{Name: name})
		}
		return nil
	})
	if err != nil {
		return unavailable(err)
	}
	if len(entries) > 0 {
		if err := s.writeEntries(ctx, entries); err != nil {
			return unavailable(err)
		}
	}
	for _, j := range runs {
		j.mu.Lock()
		j.owners, j.epochs, j.moving, j.lost, j.gone = plan.Owners{}, nil, nil, nil, true
		j.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range keys {
		delete(s.runs, k)
	}
	for k := range keys {
		if left := s.runsOf(k.job); len(left) > 0 {
			s.jobs[k.job] = left[len(left)-1]
		} else {
			delete(s.jobs, k.job)
		}
	}
	return nil
}

func (s *Service) countRuns(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runsOf(name))
}

// Run returns the newest run of a job, empty where no proxy has named any.
func (s *Service) Run(name string) plan.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[name]; j != nil {
		return j.run
	}
	return ""
}

// identityName is the store's entry for its own id.
const identityName = "store"

// identity is JSON, as head is.
type identity struct {
	Format int    `json:"format"` // 1
	ID     string `json:"id"`
}

// newID returns a store's id.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// writeEntries writes to the store, with its id ahead of the first that it gets: where
// there is anything of a run there is the id.
func (s *Service) writeEntries(ctx context.Context, entries []store.Entry) error {
	identified := s.identified.Load()
	if !identified {
		value, err := json.Marshal(identity{Format: 1, ID: s.id})
		if err != nil {
			return fmt.Errorf("encoding the store's id: %w", err)
		}
		entries = append([]store.Entry{{Name: identityName, Value: value}}, entries...)
	}
	if err := s.store.Write(ctx, entries); err != nil {
		return err
	}
	if !identified {
		s.identified.Store(true)
	}
	return nil
}
