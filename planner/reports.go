package planner

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
)

// Bounds on the state of a ReportStore.
const (
	// MaxReportHosts is how many hosts may report.
	MaxReportHosts = 4096
	// MaxReportMemory is how much memory the newest reports of all hosts may take. A thousand hosts
	// with two jobs of as many servers take 400 MB.
	MaxReportMemory = 1 << 30
	// maxJobs is how many jobs a report may have, maxMembers how many servers or workers one of
	// them.
	maxJobs, maxMembers = 1024, 1 << 16
	// ForgetAfter is after how long a silence a host may be forgotten. It is forgotten only if its
	// place is needed for another.
	ForgetAfter = 10 * time.Minute
)

// A ReportStore keeps the reports of all hosts. The zero value is empty and ready. Its methods may
// be called from any goroutine. It implements api.PlannerServer.
//
// Agents send light reports, which leave out the large parts (blocks, uses, traffic and so on), and
// a whole one when asked (light.go). A stored report has its large parts all the same: those of a
// light one are those of the last whole one, shared and not copied.
//
// Reports that were returned are shared with callers and are never changed after they are stored.
//
// Invariants: memory is the sum over hosts of what their reports take, large that of their large
// parts, jobs the number of their jobs.
type ReportStore struct {
	api.UnimplementedPlannerServer

	// Windows, if not nil, is called with each report that is newer than the stored one, while it
	// still has its windows of uses, which are not stored. It must not keep the report. It is set
	// before the first report.
	Windows func(*api.HostReport)
	// Memory is how much memory the newest reports of all hosts may take; 0 means MaxReportMemory.
	// It is set before the first report.
	Memory int

	// Names, if not nil, returns the names of a report's jobs, which are sent back to its host. It
	// is set before the first report.
	Names func(*api.HostReport) []*api.JobName

	mu     sync.Mutex // guards the rest
	hosts  map[string]entry
	memory int // that the newest reports take
	large  int
	jobs   int
	// turn decides whose next report is asked to be whole.
	turn turn
	// watched is when somebody looked at the reports last.
	watched time.Time
	history hostHistory
	// The number of the newest large parts.
	parts part
	// The number of streams so far; it orders them.
	sessions uint64
	// The number of reports that were ignored because a newer stream speaks for their host.
	silenced uint64
	now      func() time.Time // nil: time.Now
}

// An entry is the state of one host.
type entry struct {
	report *api.HostReport
	// The memory that the report takes, large parts included.
	memory int
	at     time.Time
	// whole is the sequence number of the last whole report, 0 if there was none of this
	// incarnation, part the number of its large parts, and large their memory.
	whole uint64
	part  part
	large int
	// asked is when a whole report was asked for last.
	asked time.Time
	// speaks is the stream that reports for the host. It is nil after that stream has ended; then
	// any stream may.
	speaks *session
}

// A session is one stream of reports.
type session struct {
	// The position among all streams of the store, by start.
	order uint64
	// The host that it reports for, fixed by its first report.
	host string
}

// Report implements api.PlannerServer. An agent sends its next report only after the answer to the
// last one, so a slow planner slows agents down instead of queueing their reports. The answer also
// says how large the next report may be.
func (s *ReportStore) Report(stream grpc.BidiStreamingServer[api.HostReport, api.Taken]) error {
	own := s.openSession()
	defer s.closeSession(own)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.acceptReport(own, r); err != nil {
			return err
		}
		taken := s.answer(r)
		if s.Names != nil {
			taken.Names = s.Names(r)
		}
		if err := stream.Send(taken); err != nil {
			return err
		}
	}
}

// openSession returns a session that is newer than all others.
func (s *ReportStore) openSession() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions++
	return &session{order: s.sessions}
}

// closeSession lets any other stream speak for the session's host. Its report stays.
func (s *ReportStore) closeSession(own *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.hosts[own.host]; ok && e.speaks == own {
		e.speaks = nil
		s.hosts[own.host] = e
	}
}

// Silenced returns how many reports were ignored because a newer stream speaks for their host. If
// it keeps rising, two agents use one name.
func (s *ReportStore) Silenced() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silenced
}

// acceptReport validates a report of a stream and stores it, unless a newer one of the host is
// stored. It returns a gRPC status that ends the stream if the report is malformed or there is no
// room.
func (s *ReportStore) acceptReport(own *session, r *api.HostReport) error {
	switch host := r.GetHost(); {
	case host == "":
		return status.Error(codes.InvalidArgument, "the report names no host")
	case own.host != "" && own.host != host:
		return status.Errorf(codes.InvalidArgument, "a report of host %.300q in the stream of host %.300q", host, own.host)
	}
	own.host = r.GetHost()
	if n := len(r.GetJobs()); n > maxJobs {
		return status.Errorf(codes.InvalidArgument, "a report of %d jobs, at most %d are taken", n, maxJobs)
	}
	known := map[string]bool{}
	for _, j := range r.GetJobs() {
		if err := checkHostReport(j); err != nil {
			return err
		}
		// A light report gets the large parts of each of its jobs.
		if known[j.GetJob()] {
			return status.Errorf(codes.InvalidArgument, "job %.300q is reported twice", j.GetJob())
		}
		known[j.GetJob()] = true
	}
	clearFigures(r)
	now := time.Now()
	if s.now != nil {
		now = s.now()
	}
	if fresh, err := s.fresh(own, r, now); err != nil || !fresh {
		return err
	}
	// Windows are passed on at once and not stored: the planner keeps sums of them of its own. The
	// lock is not held, since planning takes its own.
	if s.Windows != nil {
		s.Windows(r)
	}
	for _, j := range r.GetJobs() {
		j.Window = nil
	}
	return s.storeReport(own, r, now)
}

// fresh reports whether a report of a stream is newer than the stored one. The newest stream of a
// host wins, so that an agent that was replaced, or whose old connection still drains, does not
// alternate with its successor. It fails if there is no room for the host: nothing else may take
// notice of it then.
func (s *ReportStore) fresh(own *session, r *api.HostReport, now time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.hosts[r.GetHost()]
	switch {
	case known && old.speaks != nil && old.speaks != own && old.speaks.order > own.order:
		s.silenced++
		return false, nil
	case known && old.speaks == own && r.GetSequence() < old.report.GetSequence():
		return false, nil // an agent that counts backwards
	case !known:
		return true, s.makeRoom(now)
	}
	return true, nil
}

// makeRoom makes room for one more host, or fails. The caller holds s.mu.
func (s *ReportStore) makeRoom(now time.Time) error {
	if len(s.hosts) >= MaxReportHosts && !s.forgetOne(now) {
		return status.Errorf(codes.ResourceExhausted, "%d hosts report already", MaxReportHosts)
	}
	return nil
}

// storeReport stores a report without its windows. A light report gets the large parts of the last
// whole one of the same incarnation; sums of another incarnation do not fit to it.
func (s *ReportStore) storeReport(own *session, r *api.HostReport, now time.Time) error {
	memory, large := s.sizeOf(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts == nil {
		s.hosts = map[string]entry{}
	}
	// The lock was released since fresh.
	old, known := s.hosts[r.GetHost()]
	if known && old.speaks != nil && old.speaks != own && old.speaks.order > own.order {
		return nil // it began meanwhile
	}
	if !known {
		if err := s.makeRoom(now); err != nil {
			return err
		}
	}
	fresh := entry{report: r, at: now, speaks: own, asked: old.asked}
	switch {
	case !r.GetLight():
		s.parts++
		r.WholeUnixNanos, fresh.whole, fresh.part, fresh.large = r.GetUnixNanos(), r.GetSequence(), s.parts, large
	case old.report.GetIncarnation() == r.GetIncarnation():
		complete(r, old.report)
		r.WholeUnixNanos, fresh.whole, fresh.part, fresh.large = old.report.GetWholeUnixNanos(), old.whole, old.part, old.large
	default:
		r.WholeUnixNanos = 0
	}
	fresh.memory = memory + fresh.large
	if most := cmp.Or(s.Memory, MaxReportMemory); s.memory+fresh.memory-old.memory > most {
		return status.Errorf(codes.ResourceExhausted, "a report of %d bytes of memory: those of all hosts take %d already, at most %d are kept", fresh.memory, s.memory-old.memory, most)
	}
	s.memory += fresh.memory - old.memory
	s.large += fresh.large - old.large
	s.jobs += len(r.GetJobs()) - len(old.report.GetJobs())
	s.hosts[r.GetHost()] = fresh
	s.history.addReport(r, now, memory, fresh.part, fresh.large)
	return nil
}

// checkHostReport refuses a job's report whose lists do not fit each other. Later code indexes them
// without checks.
func checkHostReport(j *api.JobReport) error {
	if most := max(j.GetServers(), j.GetWorkers()); most > maxMembers {
		return status.Errorf(codes.InvalidArgument, "job %.300q: %d servers or workers, at most %d are taken", j.GetJob(), most, maxMembers)
	}
	n := len(j.GetBlocks())
	for _, u := range j.GetUses() {
		for _, row := range [][]uint64{u.GetPulls(), u.GetPushes(), u.GetPulledBytes(), u.GetPushedBytes()} {
			if len(row) != n {
				return status.Errorf(codes.InvalidArgument, "job %s: %s has %d figures for %d blocks", j.GetJob(), u.GetWorker(), len(row), n)
			}
		}
	}
	for _, list := range [][]*api.Latency{j.GetByWorker(), j.GetByServer()} {
		for _, l := range list {
			if err := checkLatency(l); err != nil {
				return status.Errorf(codes.InvalidArgument, "job %s: times of %q: %v", j.GetJob(), l.GetName(), err)
			}
		}
	}
	if err := checkLists(j); err != nil {
		return status.Errorf(codes.InvalidArgument, "job %.300q: %v", j.GetJob(), err)
	}
	if err := checkWindow(j.GetWindow()); err != nil {
		return status.Errorf(codes.InvalidArgument, "job %s: window of uses: %v", j.GetJob(), err)
	}
	return nil
}

// checkWindow checks what the planner relies on when it counts uses: ascending keys, lists of equal
// lengths, and indexes within the keys.
func checkWindow(w *api.Window) error {
	keys := w.GetKeys()
	if n := len(w.GetValueBytes()); n > 1 && n != len(keys) {
		return fmt.Errorf("%d sizes of %d keys", n, len(keys))
	}
	for i := 1; i < len(keys); i++ {
		if keys[i] <= keys[i-1] {
			return fmt.Errorf("key %d follows %d", keys[i], keys[i-1])
		}
	}
	for _, u := range w.GetUses() {
		if len(u.GetPulls()) != len(u.GetKeys()) || len(u.GetPushes()) != len(u.GetKeys()) {
			return fmt.Errorf("%s has %d pulls and %d pushes of %d keys", u.GetWorker(), len(u.GetPulls()), len(u.GetPushes()), len(u.GetKeys()))
		}
		for _, list := range [][]uint32{u.GetKeys(), u.GetPulled(), u.GetPushed()} {
			for i, at := range list {
				if int(at) >= len(keys) || i > 0 && at <= list[i-1] {
					return fmt.Errorf("%s used key number %d of %d", u.GetWorker(), at, len(keys))
				}
			}
		}
	}
	return nil
}

// checkLatency bounds a distribution, so that sums over many hosts and counts times durations do
// not overflow.
func checkLatency(l *api.Latency) error {
	if len(l.GetMicros()) != len(l.GetCounts()) {
		return fmt.Errorf("%d counts of %d durations", len(l.GetCounts()), len(l.GetMicros()))
	}
	for i, n := range l.GetCounts() {
		if n > 1<<48 || l.GetMicros()[i] > 1<<48 {
			return fmt.Errorf("%d requests of %d microseconds", n, l.GetMicros()[i])
		}
	}
	return nil
}

// forgetOne forgets the host that has been silent for the longest, if that is ForgetAfter at least,
// and reports whether there was one. The caller holds s.mu.
func (s *ReportStore) forgetOne(now time.Time) bool {
	oldest, found := "", false
	for host, e := range s.hosts {
		if now.Sub(e.at) >= ForgetAfter && (!found || e.at.Before(s.hosts[oldest].at)) {
			oldest, found = host, true
		}
	}
	e := s.hosts[oldest]
	s.memory, s.large, s.jobs = s.memory-e.memory, s.large-e.large, s.jobs-len(e.report.GetJobs())
	delete(s.hosts, oldest)
	return found
}

// All returns the newest report of each host, by host, however old. The reports must not be
// changed.
func (s *ReportStore) All() []*api.HostReport { return s.since(time.Time{}) }

// latelyIs is how old a host's newest report may be for the host to count as present. Agents report
// every few seconds.
const latelyIs = time.Minute

// Lately returns the newest reports of the hosts that have reported within the last minute, by
// host. The reports must not be changed.
func (s *ReportStore) Lately() []*api.HostReport {
	now := time.Now
	if s.now != nil {
		now = s.now
	}
	return s.since(now().Add(-latelyIs))
}

// since returns the newest reports that came at t or later, by host.
func (s *ReportStore) since(t time.Time) []*api.HostReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*api.HostReport, 0, len(s.hosts))
	for _, e := range s.hosts {
		if !e.at.Before(t) {
			all = append(all, e.report)
		}
	}
	slices.SortFunc(all, func(a, b *api.HostReport) int { return cmp.Compare(a.GetHost(), b.GetHost()) })
	return all
}
