package planner

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/psidecar/psidecar/planner/api"
)

// Bounds on the history of reports.
const (
	// HistoryEvery is how far apart the kept reports of a host are at least while they are younger
	// than HistoryFine; older ones are HistoryCoarse apart. Curves of the last minutes are fine,
	// and an hour still fits in memory.
	HistoryEvery  = 5 * time.Second
	HistoryFine   = 5 * time.Minute
	HistoryCoarse = 30 * time.Second
	// HistoryKept is how long reports are kept.
	HistoryKept = time.Hour
	// HistoryBytes is how much memory they may take. With very many hosts the history may be
	// shorter than HistoryKept.
	HistoryBytes = 128 << 20
)

// A hostHistory has reports of all hosts in the order in which they came, reduced to the sums from
// which differences are made. Reports in old came before all of fresh and are further apart. It is
// guarded by the ReportStore's mutex.
//
// A light report shares its large parts with the whole report before it; parts counts the reports
// that share them, so that their memory is counted once and released with the last.
//
// Invariant: bytes is the sum of the reports' own bytes plus those of each of parts once.
type hostHistory struct {
	old, fresh []past
	bytes      int
	parts      map[part]shared
	last       map[string]time.Time // when each host's newest report in fresh came
	lastOld    map[string]time.Time // the same for old
}

// A past is a kept report: when it came, the memory that it is counted with, and the large parts
// that it shares.
type past struct {
	report *api.HostReport
	at     time.Time
	bytes  int
	part   part
}

// A part is the number of the large parts of one whole report, in the order in which such came; 0
// stands for none. No number of the host's would do: two reports with one could have different
// parts.
type part uint64

// A shared has the memory that large parts take and the number of reports that share them.
type shared struct{ bytes, users int }

// addReport keeps a report that came at the given time, unless the host has one from less than
// HistoryEvery before. bytes is without the large parts, which are named by of and take large
// bytes. It then drops the oldest reports beyond the bounds.
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

// age moves reports that are no longer fresh to old, or drops them if the host has an old one from
// shortly before.
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
	// Release the reports; the slice keeps its array.
	clear(h.fresh[:gone])
	h.fresh = h.fresh[gone:]
}

// dropFirst drops the first report of a list, and forgets its host's time if it has no other there.
func (h *hostHistory) dropFirst(list []past, last map[string]time.Time) []past {
	p := list[0]
	h.releaseReport(p)
	if host := p.report.GetHost(); last[host] == p.at {
		delete(last, host)
	}
	list[0] = past{}
	return list[1:]
}

// releaseReport uncounts a report, and its large parts if no other report shares them.
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

// stripped returns a report with r's sums only, whose lists it shares with r.
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

// Past returns what each host had reported by time t, and when that came: its newest kept report
// from before t, else its oldest kept one. Reports are by host, hold only sums, and must not be
// changed.
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

// Kept returns all kept reports in the order in which they came, and when each did. Reports hold
// only sums and must not be changed.
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
