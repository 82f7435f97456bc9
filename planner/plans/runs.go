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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

const (
	// keepRuns is how many runs of a job are kept for operators to look at. Older ones are kept
	// while some proxy carries them.
	keepRuns = 4
	// maxRunning is how many runs one proxy may carry.
	maxRunning = 4096
)

// A runKey identifies one run of a job. run is empty for plans that were made before any proxy had
// named a run.
type runKey struct {
	job string
	run plan.Run
}

// compare orders by job, then by the time at which runs began, since a plan.Run begins with that.
func (k runKey) compare(o runKey) int {
	return cmp.Or(cmp.Compare(k.job, o.job), cmp.Compare(k.run, o.run))
}

// beginRun registers a run that a proxy carries. If the store has the run, it is checked against
// what the proxy has seen of it. If it does not, the run is new, unless the proxy has seen keys of
// it move: then the store was lost, and openRun creates an empty run for checkSeen to mark as such.
// It returns nil if the run gets no plans.
func (s *Service) beginRun(ctx context.Context, r *api.Running) *job {
	run := plan.Run(r.GetRun())
	if !run.Valid() {
		return nil
	}
	s.mu.Lock()
	known := s.runs[runKey{r.GetJob(), run}] != nil
	s.mu.Unlock()
	// No process of the run is left on that host, and the store has pruned the run. Reviving it
	// would only ask for lessons that nobody needs.
	if !known && !r.GetUsed() && r.GetStore() != "" {
		return nil // it has ended, and was forgotten
	}
	j, err := s.openRun(ctx, runKey{r.GetJob(), run}, int(r.GetServers()))
	if err != nil {
		s.opts.Log.Warn("cannot create plans for a run", "job", r.GetJob(), "run", run, "error", err)
		return nil
	}
	j.checkSeen(r.GetStore(), r.GetVersion())
	return j
}

// checkSeen marks the run as lost if a proxy has seen a store that is not in the run's lineage, or
// a version that this store does not have. Both mean that records acknowledged earlier are missing
// here. Proxies without displaced keys have seen no store and prove nothing.
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

// openRun returns a run and creates it if necessary. If it is the job's newest, the job's name
// means it from then on. A job too many displaces the idle one that was opened the longest ago; it
// fails if none is idle. A created run is not in the store until something of it is written.
func (s *Service) openRun(ctx context.Context, k runKey, servers int) (*job, error) {
	if k.job == "" || len(k.job) > 256 {
		return nil, fmt.Errorf("job %.300q: want its scheduler's host:port", k.job)
	}
	if servers < 1 || servers > MaxServers {
		return nil, fmt.Errorf("job %s has %d servers: want 1 to %d", k.job, servers, MaxServers)
	}
	if !storable(k) {
		return nil, fmt.Errorf("job %q: its name is like that of an entry of the store: want its scheduler's host:port", k.job)
	}
	s.mu.Lock()
	j := s.runs[k]
	if j != nil {
		s.opened++
		j.opened = s.opened
		s.mu.Unlock()
		return j, nil
	}
	full := s.jobs[k.job] == nil && len(s.jobs) >= MaxJobs
	s.mu.Unlock()
	// The store is not written with s.mu held. The state is looked up again after that, since
	// another caller may have created the run meanwhile.
	if full {
		if err := s.makeRoom(ctx); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if j = s.runs[k]; j != nil {
		return j, nil
	}
	if len(s.runs) >= MaxRuns {
		return nil, fmt.Errorf("%d runs already have plans: drop those of ended jobs (psidecar plan forget)", MaxRuns)
	}
	j = newJob(s, k, servers)
	s.opened++
	j.opened = s.opened
	s.runs[k] = j
	if newest := s.jobs[k.job]; newest == nil || newest.run < k.run {
		s.jobs[k.job] = j
	}
	return j, nil
}

// runsOf returns a job's runs, oldest first. The caller holds s.mu.
func (s *Service) runsOf(name string) (runs []*job) {
	for k, j := range s.runs {
		if k.job == name {
			runs = append(runs, j)
		}
	}
	slices.SortFunc(runs, func(a, b *job) int { return cmp.Compare(a.run, b.run) })
	return runs
}

// makeRoom drops the job that was opened the longest ago among those that are idle.
func (s *Service) makeRoom(ctx context.Context) error {
	s.mu.Lock()
	var idle []*job
	for _, j := range s.jobs {
		if !s.carried(j.key()) {
			idle = append(idle, j)
		}
	}
	slices.SortFunc(idle, func(a, b *job) int { return cmp.Compare(a.opened, b.opened) })
	s.mu.Unlock()
	var refused error
	for _, victim := range idle {
		s.mu.Lock()
		old := s.runsOf(victim.name)
		s.mu.Unlock()
		err := s.dropRuns(ctx, old, func(j *job) error {
			refused = s.refuseUsed(j)
			return refused
		})
		if err == nil || refused == nil { // else the next one may go
			return err
		}
	}
	return fmt.Errorf("%d jobs already have plans: drop those of ended jobs (psidecar plan forget)", MaxJobs)
}

// refuseUsed is refuseCarried for a run that may also be unnamed: of such a run nobody says that he
// carries it, but some proxy may.
func (s *Service) refuseUsed(j *job) error {
	if j.run == "" && (j.owners.Ranges() > 0 || j.moving != nil) {
		return status.Errorf(codes.FailedPrecondition, "keys of job %s are displaced", j.name)
	}
	return s.refuseCarried(j)
}

// carried reports whether some proxy carries the run. The caller holds s.mu.
func (s *Service) carried(k runKey) bool {
	for w := range s.watchers {
		if w.runs[k] != nil {
			return true
		}
	}
	return false
}

// carries returns an error unless the proxy of a host carries the run, by its own Watch. Record and
// Teach decide the owners of keys, so they are accepted only from hosts that take part in the run.
// An empty host is a caller that was allowed to speak for any host (internal/control), and unnamed
// runs have no hosts to compare with.
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
	return fmt.Errorf("job %s: the proxy on %.300q does not watch its run %s, and may not change it", k.job, host, k.run)
}

// refuseCarried returns an error if some proxy carries the run. A proxy can have begun to watch since
// the caller chose the run, and what it records must not be dropped. The caller holds j.mu, without
// which no proxy begins to watch.
func (s *Service) refuseCarried(j *job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.carried(j.key()) {
		return status.Errorf(codes.Unavailable, "a proxy has just begun to watch run %s of job %s", j.run, j.name)
	}
	return nil
}

// used reports whether some host has connections of the run. A proxy also carries runs of which it
// only keeps the state.
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

// prune drops the oldest runs of a job, beyond keepRuns, that no proxy carries. If the store cannot
// be written they are dropped when the job starts the next time.
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
	if err := s.dropRuns(ctx, old, s.refuseCarried); err != nil {
		s.opts.Log.Warn("removing the plans of old runs", "job", name, "error", err)
	}
}

// dropRuns removes runs from the store and then from memory. In the other order a restart would
// bring them back. refuse is called for each run and may return why it must stay; then none is
// dropped. The runs are locked throughout: a record that was acknowledged between the check, the
// removal and the end would be lost. dropRuns scans the whole store for the entries of the runs,
// which is acceptable since runs end rarely. The caller holds no run's mutex.
func (s *Service) dropRuns(ctx context.Context, runs []*job, refuse func(j *job) error) error {
	keys := map[runKey]bool{}
	for _, j := range slices.SortedFunc(slices.Values(runs), func(a, b *job) int { return a.key().compare(b.key()) }) {
		j.mu.Lock()
		defer j.mu.Unlock()
		keys[j.key()] = true
	}
	for _, j := range runs {
		if err := refuse(j); err != nil {
			return err
		}
	}
	var entries []store.Entry
	if slices.ContainsFunc(runs, (*job).stored) {
		err := s.store.Each(ctx, func(name string, _ []byte) error {
			if k, _, ok := cutName(name); ok && keys[k] {
				entries = append(entries, store.Entry{Name: name})
			}
			return nil
		})
		if err != nil {
			return unavailable(err)
		}
	}
	if len(entries) > 0 {
		if err := s.writeEntries(ctx, entries); err != nil {
			return unavailable(err)
		}
	}
	for _, j := range runs {
		// Callers that still hold the run see that it is gone and change nothing.
		j.owners, j.epochs, j.moving, j.lost, j.gone = plan.Owners{}, nil, nil, nil, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range keys {
		delete(s.runs, k)
	}
	// The job's name now means its newest run that is left, if any.
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

// Run returns the newest run of a job, "" if no proxy has named one.
func (s *Service) Run(name string) plan.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[name]; j != nil {
		return j.run
	}
	return ""
}

// identityName is the name of the store's entry for its own id.
const identityName = "store"

// identity is the value of that entry, as JSON.
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

// writeEntries writes entries to the store, preceded by the store's id if that is not on disk yet.
// So wherever an entry of a run is found, the id of the store that acknowledged it is found too.
// Two first writers may both write the id; it is the same.
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
