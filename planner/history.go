package planner

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/psidecar/psidecar/planner/api"
)

// Bounds of the history of reports.
const (
	// HistoryEvery is how far apart, at least, the kept reports of a host are while
	// they are no older than HistoryFine; older ones are HistoryCoarse apart.
	HistoryEvery  = 5 * time.Second
	HistoryFine   = 5 * time.Minute
	HistoryCoarse = 30 * time.Second
	// HistoryKept is for how long reports are kept.
	HistoryKept = time.Hour
	// HistoryBytes is how much memory they take. With very many hosts they may not
	// reach back for all of HistoryKept.
	HistoryBytes = 128 << 20
)

// hostHistory has reports of all hosts in the order in which they came, without
// what a difference of two is not made from: those in old came before all of
// fresh, and are further apart.
//
// Invariant: bytes is the sum of the reports', and of each of parts once.
type hostHistory struct {
	old, fresh []past
	bytes      int
	parts      map[part]shared
	last       map[string]time.Time // of each host's newest in fresh
	lastOld    map[string]time.Time // of each host's newest in old
}

// past is a report that is not the newest of its host any more, with the memory that it
// is accounted for.
type past struct {
	report *api.HostReport
	at     time.Time
	bytes  int
	part   part
}

// A part names the large parts that several reports of a host share: those of the
// whole one of that number.
type part struct {
	host        string
	incarnation uint64
	sequence    uint64
}

// shared is what large parts take, and how many reports share them.
type shared struct{ bytes, users int }

// addReport keeps a report that came at the given time, unless one of its host is
// there from shortly before. Its bytes without the large parts.
func (h *hostHistory) addReport(r *api.HostReport, at time.Time, bytes int, of part, large int) {
	if h.last == nil {
		h.last, h.lastOld, h.parts = map[string]time.Time{}, map[string]time.Time{}, map[part]shared{}
	}
	if last, ok := h.last[r.GetHost()]; ok && at.Sub(last) < HistoryEvery {
		return
	}
	h.last[r.GetHost()] = at
	kept := stripped(r)
	h.fresh = append(h.fresh, past{kept, at, bytes, of})
	h.bytes += bytes
	if h.parts[of].users == 0 {
		h.bytes += large
	}
	h.parts[of] = shared{large, h.parts[of].users + 1}
	h.age(at)
	for len(h.old) > 0 && (h.bytes > HistoryBytes || at.Sub(h.old[0].at) > HistoryKept+HistoryCoarse) {
		h.old = h.dropFirst(h.old, h.lastOld)
	}
	for len(h.fresh) > 0 && h.bytes > HistoryBytes {
		h.fresh = h.dropFirst(h.fresh, h.last)
	}
}

// age turns fresh reports to old ones, or leaves them out.
func (h *hostHistory) age(now time.Time) {
	gone := 0
	for ; gone < len(h.fresh) && now.Sub(h.fresh[gone].at) > HistoryFine; gone++ {
		p := h.fresh[gone]
		host := p.report.GetHost()
		if h.last[host] == p.at {
			delete(h.last, host)
		}
		if last, ok := h.lastOld[host]; ok && p.at.Sub(last) < HistoryCoarse {
			h.releaseReport(p)
			continue
		}
		h.lastOld[host] = p.at
		h.old = append(h.old, p)
	}
	clear(h.fresh[:gone])
	h.fresh = h.fresh[gone:]
}

// dropFirst leaves out the first of the list, and its host if that has no other.
func (h *hostHistory) dropFirst(list []past, last map[string]time.Time) []past {
	p := list[0]
	h.releaseReport(p)
	if host := p.report.GetHost(); last[host] == p.at {
		delete(last, host)
	}
	list[0] = past{}
	return list[1:]
}

// releaseReport counts a report, and large parts that nobody else has, as gone.
func (h *hostHistory) releaseReport(p past) {
	h.bytes -= p.bytes
	of := h.parts[p.part]
	if of.users--; of.users > 0 {
		h.parts[p.part] = of
		return
	}
	h.bytes -= of.bytes
	delete(h.parts, p.part)
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
func (s *ReportStore) Past(t time.Time) (reports []*api.HostReport, at []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	chosen := map[string]past{}
	for _, list := range [][]past{s.history.old, s.history.fresh} {
		until := sort.Search(len(list), func(i int) bool { return list[i].at.After(t) })
		for _, p := range list[:until] {
			chosen[p.report.GetHost()] = p
		}
		for _, p := range list[until:] {
			if _, ok := chosen[p.report.GetHost()]; !ok {
				chosen[p.report.GetHost()] = p
			}
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

// Kept returns all reports that are kept, in the order in which they came, and when
// each did. They must not be changed, and hold only sums.
func (s *ReportStore) Kept() (reports []*api.HostReport, at []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, list := range [][]past{s.history.old, s.history.fresh} {
		for _, p := range list {
			reports, at = append(reports, p.report), append(at, p.at)
		}
	}
	return reports, at
}
