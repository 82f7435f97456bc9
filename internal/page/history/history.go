// Package history keeps the last hour of jobs for curves: steps, bytes, latencies, skew, what
// proxies saved and what psidecar itself cost.
//
// [Log.Add] takes the sums of consecutive short stretches of time; [Log.Of] returns the
// stretches of the last hour, the older ones coarser, so that memory is bounded. The agent and
// the planner have a [Log] each. [Among] restricts points to a selection of nodes. [Latency] is
// the distribution in which request times are kept.
package history

import (
	"slices"
	"sync"
	"time"
)

const (
	// Every is the interval at which sums should be added.
	Every = 5 * time.Second
	// Fine is how long points are kept as they were added. Older ones are joined into stretches
	// of Coarse and dropped after Kept.
	Fine   = 10 * time.Minute
	Coarse = 30 * time.Second
	Kept   = time.Hour
	// maxJobs bounds the jobs, maxPoints the points of each.
	maxJobs   = 256
	maxPoints = 400
)

// Sums is what happened in a stretch of time.
type Sums struct {
	Steps           float64 // of the median worker
	Bytes, LeftHost float64
	// Micros and Counts are the times of requests, as [Latency.Bars]
	// returns them.
	Micros, Counts []uint64
	// Busiest is the number of bytes of the server that moved most, Mean that of the mean
	// server.
	Busiest, Mean float64
	Host          Host
}

// Host is what psidecar did on a host, or on all hosts, in a stretch of time.
type Host struct {
	// JobBytes is what proxies took from jobs for links with a codec, FarBytes what they sent
	// instead. Carries says that a proxy reports them.
	JobBytes, FarBytes float64
	Carries            bool
	CPU, Kernel        float64 // seconds of psidecar's process, and of its BPF programs
}

// A Point is a stretch of time.
type Point struct {
	From, To time.Time
	Sums
}

// A Log keeps points by job; those of the host are under the empty name. The zero value is
// empty and ready. Its methods may be called from any goroutine.
type Log struct {
	mu     sync.Mutex         // guards all below
	jobs   map[string][]Point // in order of time; points are never changed, so readers may share them
	seen   map[string]Seen    // of jobs, when they were seen last
	events map[string][]Event // in order of time
}

// Add adds a stretch of time, which must follow the previous one. Beyond maxJobs jobs, the one
// that was updated least recently is dropped.
func (l *Log) Add(job string, p Point) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs == nil {
		l.jobs = map[string][]Point{}
	}
	// Job names come from other processes. Memory must not grow with them.
	if _, known := l.jobs[job]; !known && len(l.jobs) >= maxJobs {
		l.forgetOne()
	}
	l.jobs[job] = thin(append(l.jobs[job], p), p.To)
}

// thin joins points that are older than Fine and drops those older than Kept. It copies, since
// readers may hold the old slice.
func thin(points []Point, now time.Time) []Point {
	out := points[:0:0]
	for _, p := range points {
		last := len(out) - 1
		switch {
		case now.Sub(p.To) > Kept:
		case last >= 0 && now.Sub(p.To) > Fine && sameBin(out[last], p):
			out[last] = out[last].joined(p)
		default:
			out = append(out, p)
		}
	}
	return slices.Delete(out, 0, max(len(out)-maxPoints, 0))
}

// sameBin reports whether two points belong to the same coarse stretch. Stretches begin at the
// same times for all jobs, so that their curves can be compared.
func sameBin(a, b Point) bool { return a.From.Truncate(Coarse).Equal(b.From.Truncate(Coarse)) }

// joined returns the point extended by the next one. All figures are sums, so they add up;
// distributions are merged into new slices.
func (p Point) joined(next Point) Point {
	p.To = next.To
	p.Steps += next.Steps
	p.Bytes += next.Bytes
	p.LeftHost += next.LeftHost
	p.Busiest += next.Busiest
	p.Mean += next.Mean
	p.Micros, p.Counts = Merged(p.Micros, p.Counts, next.Micros, next.Counts)
	p.Host = p.Host.Plus(next.Host)
	return p
}

// Plus returns the sum of two.
func (h Host) Plus(o Host) Host {
	return Host{h.JobBytes + o.JobBytes, h.FarBytes + o.FarBytes, h.Carries || o.Carries, h.CPU + o.CPU, h.Kernel + o.Kernel}
}

// Merged returns the sum of two distributions, both with ascending values.
func Merged(micros, counts, more, moreCounts []uint64) (sum, sumCounts []uint64) {
	i, j := 0, 0
	for i < len(micros) || j < len(more) {
		switch {
		case j == len(more) || i < len(micros) && micros[i] < more[j]:
			sum, sumCounts = append(sum, micros[i]), append(sumCounts, counts[i])
			i++
		case i == len(micros) || more[j] < micros[i]:
			sum, sumCounts = append(sum, more[j]), append(sumCounts, moreCounts[j])
			j++
		default:
			sum, sumCounts = append(sum, micros[i]), append(sumCounts, counts[i]+moreCounts[j])
			i, j = i+1, j+1
		}
	}
	return sum, sumCounts
}

// Since returns what was added to a distribution since it was before.
func Since(micros, counts, before, beforeCounts []uint64) (d, dCounts []uint64) {
	j := 0
	for i, v := range micros {
		for j < len(before) && before[j] < v {
			j++
		}
		n := counts[i]
		if j < len(before) && before[j] == v {
			n -= min(n, beforeCounts[j])
		}
		if n > 0 {
			d, dCounts = append(d, v), append(dCounts, n)
		}
	}
	return d, dCounts
}

// forgetOne drops the job whose newest point is oldest, but not the host. The caller holds
// l.mu.
func (l *Log) forgetOne() {
	oldest, found := "", false
	for job, points := range l.jobs {
		if job != "" && (!found || points[len(points)-1].To.Before(l.jobs[oldest][len(l.jobs[oldest])-1].To)) {
			oldest, found = job, true
		}
	}
	delete(l.jobs, oldest)
	delete(l.seen, oldest)
	delete(l.events, oldest)
}

// Of returns the points of a job that overlap a range of time; a zero end is open. It returns
// nil if nothing is known of the job. Callers must not change the points' slices.
func (l *Log) Of(job string, from, to time.Time) []Point {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Point
	for _, p := range l.jobs[job] {
		if (from.IsZero() || p.To.After(from)) && (to.IsZero() || p.From.Before(to)) {
			out = append(out, p)
		}
	}
	return out
}

// Quantile returns the latency in seconds that the fraction q of the point's requests did not
// exceed; 0 without requests.
func (p *Point) Quantile(q float64) float64 {
	all := uint64(0)
	for _, n := range p.Counts {
		all += n
	}
	rank := uint64(q * float64(all))
	for i, n := range p.Counts {
		if n > rank {
			return float64(p.Micros[i]) / 1e6
		}
		rank -= n
	}
	return 0
}

// Requests returns the number of answered requests.
func (p *Point) Requests() (n uint64) {
	for _, c := range p.Counts {
		n += c
	}
	return n
}

// Counted are a job's running totals since it was first seen. Differences of them are points.
type Counted struct {
	Bytes, LeftHost uint64
	Steps           []uint64 // by worker
	ByServer        []uint64 // bytes to and from each
	// Micros and Counts are the times of requests, as [Latency.Bars] returns them.
	Micros, Counts []uint64
}

// Between returns what happened between two moments, given the totals at each. Totals that went
// back, as at a new run, count as no change.
func Between(before, now Counted) Sums {
	s := Sums{Bytes: less(now.Bytes, before.Bytes), LeftHost: less(now.LeftHost, before.LeftHost)}
	s.Micros, s.Counts = Since(now.Micros, now.Counts, before.Micros, before.Counts)
	s.Steps = Median(differences(now.Steps, before.Steps))
	s.Busiest, s.Mean = Load(differences(now.ByServer, before.ByServer))
	return s
}

// less returns a-b, or 0 if a counter has started over.
func less(a, b uint64) float64 { return float64(a - min(a, b)) }

// differences returns how much each figure has grown. Figures that are new have grown from 0.
func differences(now, before []uint64) []float64 {
	d := make([]float64, len(now))
	for i, n := range now {
		if i < len(before) {
			d[i] = less(n, before[i])
		} else {
			d[i] = float64(n)
		}
	}
	return d
}

// Median returns the median, the upper one of two, or 0 for an empty list. It sorts the list.
func Median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)/2]
}

// Load returns the largest and the mean load of servers.
func Load(list []float64) (busiest, mean float64) {
	for _, n := range list {
		busiest = max(busiest, n)
		mean += n / float64(len(list))
	}
	return busiest, mean
}
