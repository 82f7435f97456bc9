package fleet

import (
	"slices"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/planner/api"
)

// times are distributions of request times, by name of worker or server.
type times map[string]*history.Latency

// timesOf merges the distributions that hosts report, by name. of selects those by worker or by
// server.
func timesOf(reports []*api.JobReport, of func(*api.JobReport) []*api.Latency) times {
	sum := times{}
	for _, r := range reports {
		for _, l := range of(r) {
			if sum[l.GetName()] == nil {
				sum[l.GetName()] = new(history.Latency)
			}
			for i, micros := range l.GetMicros() {
				sum[l.GetName()].Record(int64(micros), int64(l.GetCounts()[i]))
			}
		}
	}
	return sum
}

// all returns the distribution of all requests.
func (t times) all() *history.Latency {
	sum := new(history.Latency)
	for _, l := range t {
		sum.Merge(l)
	}
	return sum
}

// latency returns a distribution's quantiles in seconds; l may be nil. The durations are in
// microseconds and exact to 2%.
func latency(l *history.Latency) page.Latency {
	if l == nil {
		return page.Latency{}
	}
	h := l.Histogram()
	seconds := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1e6 }
	return page.Latency{
		Count: uint64(h.TotalCount()), Mean: h.Mean() / 1e6,
		P50: seconds(50), P90: seconds(90), P99: seconds(99), P999: seconds(99.9), Max: float64(h.Max()) / 1e6,
	}
}

// A pace is how fast a job goes at present.
type pace struct {
	// Steps per second of each worker.
	workers map[string]float64
	// The median of workers, the higher of the middle two.
	median     float64
	stragglers []string
	// Bytes per second.
	bytes float64
}

// silence is by how many nanoseconds a host's last message may be older than the job's before the
// host's workers count as standing still. Below that, the difference is one of reporting.
const silence = 5e9

// A worker is a straggler if it makes less than stragglerShare of the median worker's steps, and at
// least stragglerSteps fewer. Package agent/counts has the same bounds.
const (
	stragglerShare = 0.8
	stragglerSteps = 3
)

// paceOf returns the pace by the recent stretch of time of each report. Agents cut these at whole
// seconds of their clocks, so that the rates of several hosts can be added up. A worker's rate is
// that of its own host's stretch.
func paceOf(reports []*api.JobReport) pace {
	p := pace{workers: map[string]float64{}, stragglers: []string{}}
	// The job's last message on any host is the measure for all hosts; their clocks are assumed to
	// agree to within silence.
	last := int64(0)
	for _, r := range reports {
		last = max(last, r.GetRecent().GetLastUnixNanos())
	}
	spans := map[string]float64{}
	for _, r := range reports {
		recent := r.GetRecent()
		end := recent.GetLastUnixNanos()
		if last-end > silence {
			// Count the silence too, or the workers would keep the rate that they had before it.
			end = last
		}
		seconds := float64(end-recent.GetFirstUnixNanos()) / 1e9
		// An agent that has seen a single message has no stretch of time.
		if recent.GetFirstUnixNanos() == 0 || seconds <= 0 {
			continue
		}
		p.bytes += float64(recent.GetBytes()) / seconds
		for _, s := range r.GetSteps() {
			p.workers[s.GetWorker()] += float64(s.GetRecent()) / seconds
			spans[s.GetWorker()] = seconds
		}
	}
	rates := make([]float64, 0, len(p.workers))
	for _, rate := range p.workers {
		rates = append(rates, rate)
	}
	if len(rates) == 0 {
		return p
	}
	slices.Sort(rates)
	// The higher of the middle two, so that with two workers the slower one can be a straggler.
	p.median = rates[len(rates)/2]
	for worker, rate := range p.workers {
		// spans turns the difference of rates back into steps.
		if rate < stragglerShare*p.median && (p.median-rate)*spans[worker] >= stragglerSteps {
			p.stragglers = append(p.stragglers, worker)
		}
	}
	slices.Sort(p.stragglers)
	return p
}

// Servers implements page.State.
func (s *State) Servers(job string, r page.Range) (page.Servers, error) {
	reports, r, err := s.during(job, r)
	if err != nil {
		return page.Servers{}, err
	}
	t, err := traffic(job, reports)
	if err != nil {
		return page.Servers{}, err
	}
	return page.Servers{Job: job, Range: r, Servers: serverLoads(&t, reports), Workers: workerLoads(&t, reports)}, nil
}

// serverLoads returns the columns of the traffic as loads of servers, each with its share of all
// bytes.
func serverLoads(t *page.Traffic, reports []*api.JobReport) []page.ServerLoad {
	loads := []page.ServerLoad{}
	took := timesOf(reports, (*api.JobReport).GetByServer)
	// Shares are of what passed all servers in the range.
	all := uint64(0)
	for i, name := range t.Servers {
		load := page.ServerLoad{Name: name, Latency: latency(took[name])}
		for w := range t.Workers {
			load.Requests += t.Requests[w][i]
			load.BytesIn += t.ToServers[w][i]
			load.BytesOut += t.ToWorkers[w][i]
		}
		all += load.BytesIn + load.BytesOut
		loads = append(loads, load)
	}
	for i := range loads {
		if all > 0 {
			loads[i].Share = float64(loads[i].BytesIn+loads[i].BytesOut) / float64(all)
		}
	}
	return loads
}

// workerLoads returns the rows of the traffic as loads of workers.
func workerLoads(t *page.Traffic, reports []*api.JobReport) []page.WorkerLoad {
	loads := []page.WorkerLoad{}
	took, steps := timesOf(reports, (*api.JobReport).GetByWorker), paceOf(reports)
	timestamps, made := map[string]int64{}, map[string]uint64{}
	for _, r := range reports {
		for _, s := range r.GetSteps() {
			timestamps[s.GetWorker()] = max(timestamps[s.GetWorker()], int64(s.GetTimestamp()))
			// A worker is reported by its own host. Under two names, while its rank was unknown,
			// the counts are of the same steps.
			made[s.GetWorker()] = max(made[s.GetWorker()], s.GetSteps())
		}
	}
	for w, name := range t.Workers {
		load := page.WorkerLoad{
			Name: name, Latency: latency(took[name]), StepsPerSecond: steps.workers[name], Timestamp: timestamps[name], Steps: made[name],
			Straggler: slices.Contains(steps.stragglers, name),
		}
		for i := range t.Servers {
			load.Requests += t.Requests[w][i]
			load.BytesOut += t.ToServers[w][i]
			load.BytesIn += t.ToWorkers[w][i]
		}
		loads = append(loads, load)
	}
	return loads
}
