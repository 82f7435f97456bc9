package planner

import (
	"time"

	"github.com/psidecar/psidecar/planner/api"
)

// Bounds on the whole reports that agents are asked for. All agents share them, so the load on the
// planner does not grow with the number of hosts.
const (
	// wholeRate is how many bytes of large parts, in memory, are asked for per second. A job of a
	// thousand hosts has as many servers, and each host reports its workers' traffic with each of
	// them: the total is quadratic in hosts.
	wholeRate = 8 << 20
	// wholeGuess is the assumed size of large parts that have not been seen yet.
	wholeGuess = 128 << 10
	// windowKeys is how many keys the windows of all hosts may have together in the time that one
	// window covers. leastKeys is what each may have in any case.
	windowKeys = 2 << 20
	leastKeys  = 512
	// unwatched is how often each host is asked while nobody looks, which is so unwatchedAfter the
	// last request.
	unwatched, unwatchedAfter = 10 * time.Second, 10 * time.Second
)

// Watch says that somebody looks at the reports now, so that they should be new.
func (s *ReportStore) Watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = time.Now()
	if s.now != nil {
		s.watched = s.now()
	}
}

// A turn is a token bucket that spreads whole reports over time, at wholeRate with a burst of one
// second. The bucket may go negative by one report, so that a report larger than the burst has its
// turn too.
type turn struct {
	left float64 // bytes that may be asked for
	at   time.Time
}

// mayTake reports whether a whole report of that size may be asked for now, and takes its tokens if
// so.
func (t *turn) mayTake(bytes int, now time.Time) bool {
	if t.at.IsZero() {
		t.left = wholeRate
	}
	t.left = min(t.left+now.Sub(t.at).Seconds()*wholeRate, wholeRate)
	t.at = now
	if t.left <= 0 {
		return false
	}
	t.left -= float64(bytes)
	return true
}

// answer returns the acknowledgement of a report, with what the agent's next one shall be: whole or
// light, and with windows of how many keys.
func (s *ReportStore) answer(r *api.HostReport) *api.Taken {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := &api.Taken{Sequence: r.GetSequence(), Asks: true}
	if each := windowKeys / max(s.jobs, 1); each < 1<<14 {
		taken.WindowKeys = uint32(max(each, leastKeys))
	}
	e, known := s.hosts[r.GetHost()]
	if !known {
		return taken
	}
	now := time.Now()
	if s.now != nil {
		now = s.now()
	}
	bytes := e.large
	if e.whole == 0 {
		bytes = max(wholeGuess, s.large/len(s.hosts))
	}
	// A host with a whole report waits for a full round of all hosts, so that none is asked twice
	// before another is asked once. A host without one goes first.
	round := time.Duration(float64(s.large) / wholeRate * float64(time.Second))
	if now.Sub(s.watched) > unwatchedAfter {
		round = max(round, unwatched)
	}
	if (e.whole == 0 || now.Sub(e.asked) >= round) && s.turn.mayTake(bytes, now) {
		taken.Whole = true
		e.asked = now
		s.hosts[r.GetHost()] = e
	}
	return taken
}

// sizeOf returns how much memory a report takes without its large parts, and how much these take.
func (s *ReportStore) sizeOf(r *api.HostReport) (small, large int) {
	small = HeldBytes(r)
	if r.GetLight() {
		return small, 0
	}
	for _, j := range r.GetJobs() {
		large += HeldBytes(largeOf(j))
	}
	return max(small-large, 0), large
}

// largeOf returns the parts of a job's report that light reports leave out. They are shared, not
// copied.
func largeOf(j *api.JobReport) *api.JobReport {
	return &api.JobReport{
		Nodes: elsewhere(j), Blocks: j.GetBlocks(), Uses: j.GetUses(), Traffic: j.GetTraffic(), Hottest: j.GetHottest(),
		ByWorker: j.GetByWorker(), ByServer: j.GetByServer(), Skew: j.GetSkew(),
	}
}

// elsewhere returns the nodes on other hosts.
func elsewhere(j *api.JobReport) []*api.Node {
	var list []*api.Node
	for _, n := range j.GetNodes() {
		if !n.GetLocal() {
			list = append(list, n)
		}
	}
	return list
}

// complete adds the large parts of an earlier report to a light one. The lists are shared with the
// earlier report and must not be changed.
func complete(r, from *api.HostReport) {
	for _, j := range r.GetJobs() {
		old := jobOf(from, j.GetJob())
		if old == nil {
			continue
		}
		l := largeOf(old)
		j.Nodes = append(j.GetNodes(), l.GetNodes()...)
		j.Blocks, j.Uses, j.Traffic, j.Hottest = l.GetBlocks(), l.GetUses(), l.GetTraffic(), l.GetHottest()
		j.ByWorker, j.ByServer, j.Skew = l.GetByWorker(), l.GetByServer(), l.GetSkew()
	}
}

// jobOf returns a report's job of that name, or nil.
func jobOf(r *api.HostReport, name string) *api.JobReport {
	for _, j := range r.GetJobs() {
		if j.GetJob() == name {
			return j
		}
	}
	return nil
}
