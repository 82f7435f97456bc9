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
	_ "google.golang.org/grpc/encoding/gzip" // agents compress reports
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
)

// Bounds of the state that is kept.
const (
	// MaxReportHosts is how many hosts may report.
	MaxReportHosts = 4096
	// MaxReportMemory is how much memory the newest reports of all hosts take: a thousand
	// hosts of two jobs with as many servers take 400 MB.
	MaxReportMemory = 1 << 30
	// maxJobs is how many jobs a report may have, maxMembers how many servers or
	// workers one of them.
	maxJobs, maxMembers = 1024, 1 << 16
	// ForgetAfter is after what silence a host is forgotten, if room is needed.
	ForgetAfter = 10 * time.Minute
)

// ReportStore keeps reports. The zero value is empty and ready. Its methods may be called
// from any goroutine.
//
// Invariants: memory is the sum of what the reports in hosts take, large that of their
// large parts; jobs is how many jobs all of them have.
type ReportStore struct {
	api.UnimplementedPlannerServer

	// Windows, where not nil, is called with each report that is newer than the
	// kept one, while it still has its windows of uses, which are not kept. It is
	// set before the first report, and must not keep the report.
	Windows func(*api.HostReport)
	// ReportMemory is how much memory the newest reports of all hosts take at most; 0:
	// MaxReportMemory. Set before the first report.
	Memory int

	// Names, where not nil, returns the names of a report's jobs, which go back to its
	// host. Set before the first report.
	Names func(*api.HostReport) []*api.JobName

	mu       sync.Mutex // guards the rest
	hosts    map[string]entry
	memory   int // that the newest reports take
	large    int
	jobs     int
	turn     turn // whose report is to be whole
	history  hostHistory
	sessions uint64           // begun so far
	silenced uint64           // reports that were ignored, since a newer stream speaks for their host
	now      func() time.Time // nil: time.Now
}

// entry is the state of a host.
type entry struct {
	report *api.HostReport
	memory int // that it takes
	at     time.Time
	// whole is the sequence number of the last report that was whole, 0 for none,
	// and large what its large parts take.
	whole uint64
	large int
	asked time.Time // when a whole one was asked for last
	// speaks is the stream that reports for the host; nil: the last one has ended,
	// and any may.
	speaks *session
}

// session is one stream of reports.
type session struct {
	order uint64 // of its start among all streams of the store
	host  string // that it reports for, known from the first report on
}

// Report implements api.PlannerServer.
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

// openSession returns a stream that is newer than all others.
func (s *ReportStore) openSession() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions++
	return &session{order: s.sessions}
}

// closeSession lets other streams speak for the host.
func (s *ReportStore) closeSession(own *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.hosts[own.host]; ok && e.speaks == own {
		e.speaks = nil
		s.hosts[own.host] = e
	}
}

// Silenced returns how many reports were ignored because a newer stream speaks
// for their host: two agents have one name.
func (s *ReportStore) Silenced() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silenced
}

// acceptReport keeps a report of a stream, unless a newer one of the host is there.
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
	for _, j := range r.GetJobs() {
		if err := checkHostReport(j); err != nil {
			return err
		}
	}
	now := time.Now()
	if s.now != nil {
		now = s.now()
	}
	if !s.fresh(own, r) {
		return nil
	}
	if s.Windows != nil {
		s.Windows(r)
	}
	for _, j := range r.GetJobs() {
		j.Window = nil
	}
	return s.storeReport(own, r, now)
}

// fresh reports whether a report of a stream is newer than the kept one.
func (s *ReportStore) fresh(own *session, r *api.HostReport) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.hosts[r.GetHost()]
	switch {
	case known && old.speaks != nil && old.speaks != own && old.speaks.order > own.order:
		s.silenced++
		return false
	case known && old.speaks == own && r.GetSequence() < old.report.GetSequence():
		return false // an agent that counts backwards
	}
	return true
}

// storeReport keeps a report, whose windows are gone, with the large parts of the last
// whole one where it is light.
func (s *ReportStore) storeReport(own *session, r *api.HostReport, now time.Time) error {
	memory, large := s.sizeOf(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts == nil {
		s.hosts = map[string]entry{}
	}
	old, known := s.hosts[r.GetHost()]
	if known && old.speaks != nil && old.speaks != own && old.speaks.order > own.order {
		return nil // it began meanwhile
	}
	if !known && len(s.hosts) >= MaxReportHosts && !s.forgetOne(now) {
		return status.Errorf(codes.ResourceExhausted, "%d hosts report already", MaxReportHosts)
	}
	fresh := entry{report: r, at: now, speaks: own, asked: old.asked, whole: r.GetSequence(), large: large}
	r.WholeUnixNanos = r.GetUnixNanos()
	if r.GetLight() {
		r.WholeUnixNanos, fresh.whole, fresh.large = 0, 0, 0
		if old.report.GetIncarnation() == r.GetIncarnation() {
			complete(r, old.report)
			r.WholeUnixNanos, fresh.whole, fresh.large = old.report.GetWholeUnixNanos(), old.whole, old.large
		}
	}
	fresh.memory = memory + fresh.large
	if most := cmp.Or(s.Memory, MaxReportMemory); s.memory+fresh.memory-old.memory > most {
		return status.Errorf(codes.ResourceExhausted, "a report of %d bytes of memory: those of all hosts take %d already, at most %d are kept", fresh.memory, s.memory-old.memory, most)
	}
	s.memory += fresh.memory - old.memory
	s.large += fresh.large - old.large
	s.jobs += len(r.GetJobs()) - len(old.report.GetJobs())
	s.hosts[r.GetHost()] = fresh
	s.history.addReport(r, now, memory, part{r.GetHost(), r.GetIncarnation(), fresh.whole}, fresh.large)
	return nil
}

// checkHostReport refuses a report whose rows do not fit its blocks.
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
	if err := checkWindow(j.GetWindow()); err != nil {
		return status.Errorf(codes.InvalidArgument, "job %s: window of uses: %v", j.GetJob(), err)
	}
	return nil
}

// checkWindow checks what later code relies on: ascending keys, lists of equal lengths,
// and indexes within the keys.
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

// All returns the newest report of each host, by host. They must not be
// changed.
func (s *ReportStore) All() []*api.HostReport { return s.since(time.Time{}) }

// latelyIs how long ago a host has reported that is taken to be there.
const latelyIs = time.Minute

// Lately is [ReportStore.All] for hosts that have reported within the last minute.
func (s *ReportStore) Lately() []*api.HostReport {
	now := time.Now
	if s.now != nil {
		now = s.now
	}
	return s.since(now().Add(-latelyIs))
}

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
