package planner

import (
	"time"

	"github.com/psidecar/psidecar/planner/api"
)

// Bounds of the full reports that all agents together are asked for.
const (
	// wholeRate is how much memory the large parts of reports take that are asked
	// for in a second. A job of 1,000 hosts has as many servers, and each host tells
	// of its workers' traffic with each of them: it is the square of the hosts.
	wholeRate = 8 << 20
	// wholeGuess is the assumed size of large parts of unknown size.
	wholeGuess = 128 << 10
	// windowKeys is how many keys the windows have together that agents send in the
	// time of one. leastKeys is what each may have whatever the others do.
	windowKeys = 2 << 20
	leastKeys  = 512
)

// A turn says whose report is to be whole: those of all hosts, in turn, at no more
// than wholeRate.
type turn struct {
	left float64 // bytes that may be asked for
	at   time.Time
}

// mayTake reports whether reports of that many bytes may be requested now, and
// counts them.
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

// answer says what the agent's next report is to be.
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
	round := time.Duration(float64(s.large) / wholeRate * float64(time.Second))
	if (e.whole == 0 || now.Sub(e.asked) >= round) && s.turn.mayTake(bytes, now) {
		taken.Whole = true
		e.asked = now
		s.hosts[r.GetHost()] = e
	}
	return taken
}

// sizeOf returns how much memory a report takes without its large parts, and these.
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

// largeOf returns the parts of a job's report that light ones leave out.
func largeOf(j *api.JobReport) *api.JobReport {
	return &api.JobReport{
		Nodes: elsewhere(j), Blocks: j.GetBlocks(), Uses: j.GetUses(), Traffic: j.GetTraffic(), Hottest: j.GetHottest(),
		ByWorker: j.GetByWorker(), ByServer: j.GetByServer(), Skew: j.GetSkew(),
	}
}

// elsewhere returns the nodes that run on other hosts.
func elsewhere(j *api.JobReport) []*api.Node {
	var list []*api.Node
	for _, n := range j.GetNodes() {
		if !n.GetLocal() {
			list = append(list, n)
		}
	}
	return list
}

// complete gives a light report the large parts of an earlier one.
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

func jobOf(r *api.HostReport, name string) *api.JobReport {
	for _, j := range r.GetJobs() {
		if j.GetJob() == name {
			return j
		}
	}
	return nil
}
