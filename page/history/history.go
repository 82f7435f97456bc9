// Package history keeps how jobs went over the last hour, as curves are drawn of
// it: steps, bytes, times of requests, skew, what proxies saved and what psidecar
// itself cost.
//
// In come sums of one short stretch of time after the other ([Log.Add]); out come
// the stretches of the last hour ([Log.Of]), the older ones coarser, so that
// memory is bounded. The agent and the planner keep one each.
package history

import (
	"slices"
	"sync"
	"time"
)

const (
	// Every is how often sums are to be added.
	Every = 5 * time.Second
	// Fine is for how long they are kept as they were added. Older ones are joined
	// into stretches of Coarse, and forgotten after Kept.
	Fine   = 10 * time.Minute
	Coarse = 30 * time.Second
	Kept   = time.Hour
	// maxJobs is of how many jobs curves are kept, maxPoints how many stretches of
	// one.
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
	// Busiest are the bytes of the server that moved the most, Mean those of the
	// mean server.
	Busiest, Mean float64
	Host          Host
}

// Host is what a host's psidecar, or all hosts', did in a stretch of time.
type Host struct {
	// JobBytes are what proxies took from the job for links with a codec, FarBytes
	// what they sent in its stead. Carries: there is a proxy that says so.
	JobBytes, FarBytes float64
	Carries            bool
	CPU, Kernel        float64 // seconds of psidecar and of its programs in the kernel
}

// A Point is a stretch of time.
type Point struct {
	From, To time.Time
	Sums
}

// A Log keeps points by job; those of no job are under the empty name. The zero
// value is empty and ready. Its methods may be called from any goroutine.
type Log struct {
	mu   sync.Mutex         // guards jobs
	jobs map[string][]Point // in order of time; points are not changed
}

// Add keeps what happened in a stretch of time that follows the last one.
func (l *Log) Add(job string, p Point) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs == nil {
		l.jobs = map[string][]Point{}
	}
	if _, known := l.jobs[job]; !known && len(l.jobs) >= maxJobs {
		l.forgetOne()
	}
	l.jobs[job] = thin(append(l.jobs[job], p), p.To)
}

// thin joins points that are old, and forgets those that are too old.
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

// sameBin reports whether two points belong to one coarse stretch of time: all
// jobs' stretches begin at the same times.
func sameBin(a, b Point) bool { return a.From.Truncate(Coarse).Equal(b.From.Truncate(Coarse)) }

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

// Plus returns what two did together.
func (h Host) Plus(o Host) Host {
	return Host{h.JobBytes + o.JobBytes, h.FarBytes + o.FarBytes, h.Carries || o.Carries, h.CPU + o.CPU, h.Kernel + o.Kernel}
}

// Merged returns two distributions as one.
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

// Since returns what came to a distribution since it was another.
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

// forgetOne forgets the job that was added to least lately. The caller holds
// l.mu.
func (l *Log) forgetOne() {
	oldest, found := "", false
	for job, points := range l.jobs {
		if job != "" && (!found || points[len(points)-1].To.Before(l.jobs[oldest][len(l.jobs[oldest])-1].To)) {
			oldest, found = job, true
		}
	}
	delete(l.jobs, oldest)
}

// Of returns a job's points that overlap a stretch of time, of which either end
// may be open; nil where nothing is known of the job. They must not be changed.
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

// Quantile returns what share q of the point's requests took no longer than, in
// seconds; 0 where there was none.
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

// Requests returns how many requests were answered.
func (p *Point) Requests() (n uint64) {
	for _, c := range p.Counts {
		n += c
	}
	return n
}

// Counted are a job's sums since it was first seen, those that rates over time
// are made of.
type Counted struct {
	Bytes, LeftHost uint64
	Steps           []uint64 // by worker
	ByServer        []uint64 // bytes to and from it
	// Micros and Counts are the times of requests, as [Latency.Bars] returns them.
	Micros, Counts []uint64
}

// Between returns what happened to a job from one moment to another, by what was
// counted until then.
func Between(before, now Counted) Sums {
	s := Sums{Bytes: less(now.Bytes, before.Bytes), LeftHost: less(now.LeftHost, before.LeftHost)}
	s.Micros, s.Counts = Since(now.Micros, now.Counts, before.Micros, before.Counts)
	s.Steps = Median(differences(now.Steps, before.Steps))
	s.Busiest, s.Mean = Load(differences(now.ByServer, before.ByServer))
	return s
}

func less(a, b uint64) float64 { return float64(a - min(a, b)) }

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

// Median returns the higher one of the two in the middle, 0 of nothing. It sorts
// the list.
func Median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)/2]
}

// Load returns the most and the mean of what servers did.
func Load(list []float64) (busiest, mean float64) {
	for _, n := range list {
		busiest = max(busiest, n)
		mean += n / float64(len(list))
	}
	return busiest, mean
}
