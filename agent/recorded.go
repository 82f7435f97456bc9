package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/internal/recording"
)

// Recorded holds the jobs of recordings and shows them as an agent shows what it watches: it
// implements page.State. Jobs are named after their recordings. A recording has no messages but
// uses of keys, so bytes are those of keys and values, and latencies those from a pull to its
// answer. Its methods may be called from any goroutine.
type Recorded struct {
	Version string
	Memory  int   // bytes for each job's keys and counters; 0: an agent's default
	Takes   int64 // size limit of a recording that is opened through the page; 0: none can be

	reading sync.Mutex  // held while a recording is read, one at a time; taken before mu
	mu      sync.Mutex  // guards jobs; the jobs themselves do not change once they are in it
	jobs    []*recorded // sorted by name
}

// maxRecorded bounds the jobs of all recordings, maxRecordedNodes the workers, and servers, of
// each.
const maxRecorded, maxRecordedNodes = 16, 1 << 16

// recorded is one job of a recording. Until it is published in Recorded.jobs it belongs to the
// goroutine that reads; the fields from counted on are used by that alone.
type recorded struct {
	name             string
	view             observe.JobView
	host             string
	workers, servers map[string]int // indexes by name
	log              history.Log    // curves, under the empty name

	counted history.Counted // totals at the end of the log's newest point
	// When that point ended, in nanoseconds since 1970.
	began   int64
	uses    uint64  // since then
	weights uint64  // requests that those uses stand for
	steps   float64 // of the median worker, scaled up for those that were not sampled
	looked  float64 // steps that were sampled
}

// keyBytes is the size of a key in a message.
const keyBytes = 8

// Open reads a recording and returns the names of its jobs. A recording that is cut off is
// shown as far as it goes. After any other error nothing of it is kept. It blocks until all of
// it is read.
func (r *Recorded) Open(name string, in io.Reader) ([]string, error) {
	r.reading.Lock()
	defer r.reading.Unlock()
	name, room := r.free(name)
	jobs := map[string]*recorded{}
	header, totals, err := recording.Read(in, func(u *recording.Use) error {
		j := jobs[u.Job]
		if j == nil {
			if len(jobs) >= room {
				return fmt.Errorf("there is room for %d jobs, and no more: open it with psidecar show in another terminal", maxRecorded)
			}
			if j = r.newJob(u); j == nil {
				return fmt.Errorf("job %q is not named by its scheduler's address", u.Job)
			}
			jobs[u.Job] = j
		}
		return j.use(u)
	})
	// A recorder that was killed leaves a file that is cut off.
	if err != nil && !errors.Is(err, recording.ErrCutOff) {
		return nil, err
	}
	if len(jobs) == 0 {
		return nil, errors.New("the recording holds no use of keys")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for job, j := range jobs {
		j.name, j.host = r.nameOf(name, job), header.Host
		// The last point ends with the recording. A file that is cut off has no end, and the
		// last use stands for it.
		j.point(max(totals.EndedNanos, j.view.Last))
		r.jobs, names = append(r.jobs, j), append(names, j.name)
	}
	slices.SortFunc(r.jobs, func(a, b *recorded) int { return strings.Compare(a.name, b.name) })
	slices.Sort(names)
	return names, nil
}

// free returns the name, with a number appended if it is taken, and for how many more jobs
// there is room.
func (r *Recorded) free(name string) (free string, room int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	free = name
	for n := 2; slices.ContainsFunc(r.jobs, func(j *recorded) bool { return strings.HasPrefix(j.name, r.nameOf(free, "")) }); n++ {
		free = fmt.Sprintf("%s (%d)", name, n)
	}
	return free, maxRecorded - len(r.jobs)
}

// allJobs returns a copy of the list of jobs.
func (r *Recorded) allJobs() []*recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.jobs)
}

// nameOf returns the name of a recording's job.
func (r *Recorded) nameOf(file, job string) string { return file + " " + job }

// newJob returns a job for its first use, nil if the use does not name a scheduler's address.
func (r *Recorded) newJob(u *recording.Use) *recorded {
	address, err := netip.ParseAddrPort(u.Job)
	if err != nil {
		return nil
	}
	opts := counts.DefaultLocalityOptions
	if r.Memory > 0 {
		opts.Counts.MemoryBytes = r.Memory
	}
	j := &recorded{workers: map[string]int{}, servers: map[string]int{}, began: u.UnixNanos}
	j.view = observe.JobView{Job: &observe.Job{Scheduler: address, Sums: counts.NewLocality(opts)}, First: u.UnixNanos}
	return j
}

// number returns the index of a node, assigning the next one to a new node.
func number(numbers map[string]int, names *[]string, name string) int {
	n, ok := numbers[name]
	if !ok {
		n = len(numbers)
		numbers[name] = n
		*names = append(*names, name)
	}
	return n
}

// use counts one use, as the observer would have.
func (j *recorded) use(u *recording.Use) error {
	// Points are as far apart as those of a live agent, so the curves look alike.
	if u.UnixNanos-j.began >= int64(history.Every) {
		j.point(u.UnixNanos)
	}
	v := &j.view
	weight := uint64(max(u.OneIn, 1))
	v.Last, v.SampledOneIn = max(v.Last, u.UnixNanos), max(v.SampledOneIn, uint32(weight))
	j.uses, j.weights = j.uses+1, j.weights+weight
	request := counts.Request{
		Worker: number(j.workers, &v.WorkersByIndex, u.Worker), Server: number(j.servers, &v.ServersByIndex, u.Server),
		Time: u.UnixNanos, App: u.App, Customer: u.Customer, Timestamp: u.Timestamp, Push: u.Push, Pull: u.Pull,
	}
	v.Workers, v.Servers = len(j.workers), len(j.servers)
	sums := v.Job.Sums
	if u.Answer {
		sums.Answer(request)
	} else {
		sums.Ask(request)
	}
	// Sampled uses count for those that were not, by their weight, as the observer counts live
	// ones.
	sums.Moved(request, !u.Answer, weight*(u.Bytes+keyBytes*uint64(len(u.Keys))), false, false)
	sums.Use(u.UnixNanos, batch(u, request.Worker, weight))
	// A damaged or hostile file could name a new node in every use.
	if max(v.Workers, v.Servers) > maxRecordedNodes {
		return fmt.Errorf("job %s has more than %d workers or servers", u.Job, maxRecordedNodes)
	}
	return nil
}

// batch converts a use to counts: accesses at the request, and bytes of values where they
// travel, as observe does. Without lens, bytes are divided equally among the keys.
func batch(u *recording.Use, worker int, weight uint64) counts.Batch {
	b := counts.Batch{Worker: worker, Keys: u.Keys}
	plane := counts.PulledBytes
	switch {
	case u.Answer:
	case u.Push:
		plane = counts.PushedBytes
		b.Each[counts.Pushes] = weight
		if u.Pull {
			b.Each[counts.Pulls] = weight
		}
	default:
		b.Each[counts.Pulls] = weight
	}
	elements := uint64(0)
	for _, n := range u.Lens {
		elements += uint64(max(n, 0))
	}
	switch {
	case elements > 0:
		b.Lens, b.LenUnit, b.LenPlane = u.Lens, weight*u.Bytes/elements, plane
	case len(u.Keys) > 0:
		b.Each[plane] += weight * u.Bytes / uint64(len(u.Keys))
	}
	return b
}

// point adds what was counted since the last point to the log. Steps are scaled up by the
// weight of the uses, since a sampled recording has only some of them.
func (j *recorded) point(until int64) {
	if until <= j.began {
		return
	}
	counted := j.view.Job.Sums.Counted()
	sums := history.Between(j.counted, counted)
	j.looked += sums.Steps
	if j.uses > 0 {
		sums.Steps *= float64(j.weights) / float64(j.uses)
	}
	j.steps += sums.Steps
	j.log.Add("", history.Point{From: time.Unix(0, j.began), To: time.Unix(0, until), Sums: sums})
	j.counted, j.began, j.uses, j.weights = counted, until, 0, 0
}

// job returns a job by its name. The error is page.ErrNoJob if there is none.
func (r *Recorded) job(name string) (*recorded, error) {
	for _, j := range r.allJobs() {
		if j.name == name {
			return j, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", page.ErrNoJob, name)
}

// Ready implements page.State.
func (r *Recorded) Ready() error { return nil }

// Jobs implements page.State.
func (r *Recorded) Jobs() []page.Job {
	var jobs []page.Job
	for _, j := range r.allJobs() {
		v := &j.view
		size, all := v.Job.Sums.Table.Size(), v.Job.Sums.All()
		seconds := max(float64(v.Last-v.First)/1e9, 1e-9)
		jobs = append(jobs, page.Job{
			Name: j.name, Servers: v.Servers, Workers: v.Workers, FirstSeen: time.Unix(0, v.First), LastSeen: time.Unix(0, v.Last),
			Accesses: size.Total[0] + size.Total[1], DistinctKeys: size.Keys, Exact: size.Exact() && v.SampledOneIn <= 1, SampledOneIn: max(v.SampledOneIn, 1),
			Bytes: all.Bytes, StepsPerSecond: j.steps / seconds, BytesPerSecond: float64(all.Bytes) / seconds,
			Latency: latency(all.Latency), Stragglers: []string{}, Stalls: []page.Stall{}, Nodes: []page.Node{},
			State: page.Over, What: fmt.Sprintf("a recording of %.1f s, made on %s", seconds, cmp.Or(j.host, "a host")),
		})
	}
	return jobs
}

// Heatmap implements page.State.
func (r *Recorded) Heatmap(job string, q page.HeatmapQuery) (page.Heatmap, error) {
	j, err := r.job(job)
	if err != nil {
		return page.Heatmap{}, err
	}
	h := page.Heatmap{}
	if q.Rows > 0 {
		h = heatmapByTime(&j.view, q, time.Unix(0, j.view.Last))
	} else {
		h = heatmap(&j.view, q)
	}
	h.Job = j.name
	return h, nil
}

// Traffic implements page.State.
func (r *Recorded) Traffic(job string, span page.Range) (page.Traffic, error) {
	j, err := r.job(job)
	if err != nil {
		return page.Traffic{}, err
	}
	t := traffic(&j.view, span)
	t.Job = j.name
	return t, nil
}

// Keys implements page.State.
func (r *Recorded) Keys(job string, n int) (page.Keys, error) {
	j, err := r.job(job)
	if err != nil {
		return page.Keys{}, err
	}
	k := hottest(&j.view, n)
	k.Job = j.name
	return k, nil
}

// Servers implements page.State.
func (r *Recorded) Servers(job string, span page.Range) (page.Servers, error) {
	j, err := r.job(job)
	if err != nil {
		return page.Servers{}, err
	}
	s := loads(&j.view, span, time.Unix(0, j.view.Last))
	s.Job = j.name
	for i := range s.Workers {
		// Steps of a sampled recording are scaled up as the curves are, by the ratio over the
		// whole recording.
		s.Workers[i].StepsPerSecond *= j.steps / max(j.looked, 1)
		s.Workers[i].Steps = uint64(math.Round(float64(s.Workers[i].Steps) * j.steps / max(j.looked, 1)))
	}
	return s, nil
}

// Agent implements page.State.
func (r *Recorded) Agent() page.Agent {
	var hosts []string
	for _, j := range r.allJobs() {
		hosts = append(hosts, j.host)
	}
	slices.Sort(hosts)
	return page.Agent{
		Version: r.Version, Host: "recordings of " + cmp.Or(strings.Join(slices.Compact(hosts), ", "), "no host yet"), MemoryBytes: residentBytes(),
		RecordingBytes: r.Takes,
		Programs:       []page.Program{}, Counters: []page.Counter{}, Sketches: []page.Sketch{}, Cgroups: []string{},
	}
}

// History returns the curves of the last hour of a recording.
func (r *Recorded) History(job string, q page.HistoryQuery) (page.History, error) {
	j, err := r.job(job)
	if err != nil {
		return page.History{}, err
	}
	points := j.log.Of("", q.From, q.To)
	if q.Some() {
		points = history.Among(points, partsOf(&j.view, q.Selection))
	}
	return page.NewHistory(job, q, points), nil
}
