package fleet

import (
	"math"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
)

// during returns what agents saw of a job in a range of time, as the difference of two reports of
// each host, and the range that these really cover: hosts report every few seconds, and older
// reports are kept less densely. The zero range is all that is known, and costs nothing.
func (s *State) during(job string, r page.Range) ([]*api.JobReport, page.Range, error) {
	// This also decides whether the job exists.
	newest, err := s.job(job)
	if err != nil || r == (page.Range{}) {
		return newest, r, err
	}
	// Without a history only the newest reports are known, whatever their age.
	if s.Past == nil {
		return nil, r, page.ErrNoRange
	}
	var all []*api.JobReport
	for _, host := range s.Reports() {
		all = append(all, jobOf(host, job))
	}
	// Names improve as ranks become known, so the newest ones are used for old reports too.
	// Otherwise a node would be two.
	names := betterNames(all)
	before := map[string]*api.HostReport{}
	came := map[string]time.Time{}
	hosts, at := s.Past(r.From)
	for i, host := range hosts {
		before[host.GetHost()], came[host.GetHost()] = host, at[i]
	}
	var parts []*api.JobReport
	span := page.Range{To: r.To}
	for _, host := range s.until(r.To) {
		last := jobOf(host, job)
		if last == nil {
			continue
		}
		first, from := base(before[host.GetHost()], came[host.GetHost()], host, r.From)
		// The range shown is that of the host that goes back the farthest.
		if span.From.IsZero() || from.Before(span.From) {
			span.From = from
		}
		// Each host's difference is of its own two reports, which need not be of the same moment as
		// another host's.
		parts = append(parts, minus(renamed(last, names), jobOf(first, job), names))
	}
	return parts, span, nil
}

// until returns what hosts had reported by the end of a range. Hosts whose first known report is
// later are left out.
func (s *State) until(to time.Time) []*api.HostReport {
	if to.IsZero() {
		return s.Reports()
	}
	hosts, at := s.Past(to)
	known := hosts[:0:0]
	// Past returns the first known report of a host that has none from before to. That one is of a
	// later time.
	for i, host := range hosts {
		if !at[i].After(to) {
			known = append(known, host)
		}
	}
	return known
}

// base returns the report from which a host's figures are counted at the beginning of a range, nil
// to count from zero, and when it came. Zero is right if the agent was started within the range; a
// report of another incarnation is of other counters.
func base(first *api.HostReport, came time.Time, host *api.HostReport, from time.Time) (*api.HostReport, time.Time) {
	began := time.Unix(0, host.GetAgent().GetStartedUnixNanos())
	if first == nil || first.GetIncarnation() != host.GetIncarnation() || came.After(from) && !began.Before(from) {
		return nil, from // its agent has begun since
	}
	return first, came
}

// jobOf returns a host's report of a job, nil if it has none.
func jobOf(host *api.HostReport, job string) *api.JobReport {
	for _, j := range host.GetJobs() {
		if j.GetJob() == job {
			return j
		}
	}
	return nil
}

// less returns a - b, or 0 if that is negative. Counters in one report are not read at the same
// instant, so two reports may differ by the last message.
func less(a, b uint64) uint64 { return a - min(a, b) }

// minus returns what a host's report has in excess of an earlier one of the same incarnation, or
// all of it if first is nil. Counters are subtracted; what describes the job is the newer report's.
// The hottest keys, the sketch and skew are left out, because they are not sums.
func minus(last, first *api.JobReport, names map[string]string) *api.JobReport {
	if first == nil {
		return last
	}
	first = renamed(first, names)
	d := &api.JobReport{
		Job: last.GetJob(), Dialect: last.GetDialect(), Servers: last.GetServers(), Workers: last.GetWorkers(),
		Nodes: last.GetNodes(), SampledOneIn: last.GetSampledOneIn(), Exact: last.GetExact(), Connections: last.GetConnections(),
		Bytes:          less(last.GetBytes(), first.GetBytes()),
		LeftHostBytes:  less(last.GetLeftHostBytes(), first.GetLeftHostBytes()),
		RepeatedBytes:  less(last.GetRepeatedBytes(), first.GetRepeatedBytes()),
		FirstUnixNanos: first.GetLastUnixNanos(), LastUnixNanos: last.GetLastUnixNanos(),
		ByWorker: timesMinus(last.GetByWorker(), first.GetByWorker()),
		ByServer: timesMinus(last.GetByServer(), first.GetByServer()),
	}
	// Rates of a range of time are means over the range.
	d.Recent = &api.Recent{FirstUnixNanos: d.FirstUnixNanos, LastUnixNanos: d.LastUnixNanos, Bytes: d.Bytes}
	// A light report has the traffic of the last whole one, so a short range may show none, and the
	// next one more.
	d.Traffic = trafficMinus(last.GetTraffic(), first.GetTraffic())
	// A worker that the earlier report does not have has made all of its steps since.
	steps := map[string]uint64{}
	for _, s := range first.GetSteps() {
		steps[s.GetWorker()] = s.GetSteps()
	}
	for _, s := range last.GetSteps() {
		n := less(s.GetSteps(), steps[s.GetWorker()])
		d.Steps = append(d.Steps, &api.Steps{Worker: s.GetWorker(), Steps: n, Recent: n, Timestamp: s.GetTimestamp()})
	}
	usesMinus(d, last, first)
	return d
}

// trafficMinus subtracts the traffic of each pair of worker and server.
func trafficMinus(last, first []*api.Traffic) (list []*api.Traffic) {
	before := map[[2]string]*api.Traffic{}
	for _, p := range first {
		before[[2]string{p.GetWorker(), p.GetServer()}] = p
	}
	for _, p := range last {
		b := before[[2]string{p.GetWorker(), p.GetServer()}]
		list = append(list, &api.Traffic{
			Worker: p.GetWorker(), Server: p.GetServer(),
			ToServer: less(p.GetToServer(), b.GetToServer()), ToWorker: less(p.GetToWorker(), b.GetToWorker()),
			Requests: less(p.GetRequests(), b.GetRequests()),
		})
	}
	return list
}

// timesMinus subtracts distributions duration by duration. That is exact, since the durations that
// agents report are the buckets of one histogram.
func timesMinus(last, first []*api.Latency) (list []*api.Latency) {
	type duration struct {
		name   string
		micros uint64
	}
	before := map[duration]uint64{}
	for _, l := range first {
		for i, micros := range l.GetMicros() {
			before[duration{l.GetName(), micros}] += l.GetCounts()[i]
		}
	}
	for _, l := range last {
		d := &api.Latency{Name: l.GetName()}
		for i, micros := range l.GetMicros() {
			if n := less(l.GetCounts()[i], before[duration{l.GetName(), micros}]); n > 0 {
				d.Micros, d.Counts = append(d.Micros, micros), append(d.Counts, n)
			}
		}
		list = append(list, d)
	}
	return list
}

// usesMinus sets the uses of keys in d, in the blocks that both reports have in common: an agent
// splits and joins blocks as it sees more keys. Without blocks in either report, all of the newer
// one's uses are taken.
//
// A block that was split since is shown whole, and one that was joined is not shown in parts, so a
// range of time may have coarser blocks than the job has now.
func usesMinus(d, last, first *api.JobReport) {
	if len(last.GetBlocks()) == 0 || len(first.GetBlocks()) == 0 {
		d.Blocks, d.Uses = last.GetBlocks(), last.GetUses()
		return
	}
	rows := map[string]int{}
	workers := []string{}
	for _, r := range []*api.JobReport{last, first} {
		for _, u := range r.GetUses() {
			if _, ok := rows[u.GetWorker()]; !ok {
				rows[u.GetWorker()] = len(rows)
				workers = append(workers, u.GetWorker())
			}
		}
	}
	// Bring both to the block edges that they share, then subtract block by block.
	after, before := gridOf(last, rows, len(rows)), gridOf(first, rows, len(rows))
	firsts := page.CommonEdges([]*page.Grid{after, before})
	// Numbers of keys are no sums over time: those of the end of the range are shown.
	keys := keysIn([]*api.JobReport{last}, firsts)
	for i, f := range firsts {
		end := uint64(math.MaxUint64)
		if i+1 < len(firsts) {
			end = firsts[i+1] - 1
		}
		d.Blocks = append(d.Blocks, &api.Block{First: f, Last: end, Keys: keys[f]})
	}
	sums, old := after.Regroup(firsts), before.Regroup(firsts)
	for w, name := range workers {
		u := &api.Use{Worker: name}
		columns := []*[]uint64{&u.Pulls, &u.Pushes, &u.PulledBytes, &u.PushedBytes}
		for i := range firsts {
			for p, column := range columns {
				n := uint64(0)
				if sums[w] != nil {
					n = sums[w][i][p]
				}
				// Both grids have a row for each worker of either report; that of an unknown worker
				// is nil.
				if old[w] != nil {
					n = less(n, old[w][i][p])
				}
				*column = append(*column, n)
			}
		}
		d.Uses = append(d.Uses, u)
	}
}
