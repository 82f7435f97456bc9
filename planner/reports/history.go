package reports

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/intake"
)

// What is kept of reports that are not the newest any more.
const (
	// HistoryEvery is how far apart, at least, the kept reports of a host are.
	HistoryEvery = 5 * time.Second
	// HistoryKept is for how long reports are kept.
	HistoryKept = 15 * time.Minute
	// HistoryBytes is how much memory they take. With very many hosts they may not
	// reach back for all of HistoryKept.
	HistoryBytes = 128 << 20
)

// history has reports of all hosts in the order in which they came, without
// what a difference of two is not made from.
type history struct {
	list  []past
	bytes int
	last  map[string]time.Time // of each host's newest
}

type past struct {
	report *api.HostReport
	at     time.Time
	bytes  int
}

// add keeps a report that came at the given time, unless one of its host is
// there from shortly before.
func (h *history) add(r *api.HostReport, at time.Time) {
	if h.last == nil {
		h.last = map[string]time.Time{}
	}
	if last, ok := h.last[r.GetHost()]; ok && at.Sub(last) < HistoryEvery {
		return
	}
	h.last[r.GetHost()] = at
	kept := stripped(r)
	p := past{kept, at, intake.Held(kept)}
	h.list = append(h.list, p)
	h.bytes += p.bytes
	gone := 0
	for h.bytes > HistoryBytes || at.Sub(h.list[gone].at) > HistoryKept+HistoryEvery {
		old := &h.list[gone]
		h.bytes -= old.bytes
		if h.last[old.report.GetHost()] == old.at {
			delete(h.last, old.report.GetHost())
		}
		if gone++; gone == len(h.list) {
			break
		}
	}
	clear(h.list[:gone])
	h.list = h.list[gone:]
}

// stripped returns the report's sums, which it shares with the report.
func stripped(r *api.HostReport) *api.HostReport {
	s := &api.HostReport{
		Host: r.GetHost(), Incarnation: r.GetIncarnation(), Sequence: r.GetSequence(),
		Agent: &api.AgentReport{StartedUnixNanos: r.GetAgent().GetStartedUnixNanos()},
	}
	for _, j := range r.GetJobs() {
		s.Jobs = append(s.Jobs, &api.JobReport{
			Job: j.GetJob(), Dialect: j.GetDialect(), Servers: j.GetServers(), Workers: j.GetWorkers(),
			SampledOneIn: j.GetSampledOneIn(), Exact: j.GetExact(), DistinctKeys: j.GetDistinctKeys(),
			Bytes: j.GetBytes(), LeftHostBytes: j.GetLeftHostBytes(), RepeatedBytes: j.GetRepeatedBytes(),
			FirstUnixNanos: j.GetFirstUnixNanos(), LastUnixNanos: j.GetLastUnixNanos(),
			Blocks: j.GetBlocks(), Uses: j.GetUses(), Traffic: j.GetTraffic(), Steps: j.GetSteps(),
			ByWorker: j.GetByWorker(), ByServer: j.GetByServer(),
		})
	}
	return s
}

// Past returns what each host had reported by time t, by host, and when that
// came: the newest report that is kept from before, or the first one that is
// kept, if that came later. They must not be changed, and hold only sums.
func (s *Store) Past(t time.Time) (reports []*api.HostReport, at []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.history.list
	until := sort.Search(len(list), func(i int) bool { return list[i].at.After(t) })
	chosen := map[string]past{}
	for _, p := range list[:until] {
		chosen[p.report.GetHost()] = p
	}
	for _, p := range list[until:] {
		if _, ok := chosen[p.report.GetHost()]; !ok {
			chosen[p.report.GetHost()] = p
		}
	}
	all := make([]past, 0, len(chosen))
	for _, p := range chosen {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b past) int { return cmp.Compare(a.report.GetHost(), b.report.GetHost()) })
	for _, p := range all {
		reports, at = append(reports, p.report), append(at, p.at)
	}
	return reports, at
}
