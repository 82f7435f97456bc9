package agent

import (
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// home returns the name of the server whose PS-lite range has the key, its home; empty while
// the number of servers is unknown.
func home(v *observe.JobView, key uint64) string {
	if v.Servers == 0 {
		return ""
	}
	rank, ok := pslite.Owner(key, v.Servers)
	if !ok {
		return ""
	}
	return pslite.NodeName(pslite.ServerID(rank))
}

// Traffic implements page.State.
func (a *Agent) Traffic(job string, r page.Range) (page.Traffic, error) {
	v, err := a.view(job)
	if err != nil {
		return page.Traffic{}, err
	}
	return traffic(&v, r), nil
}

// traffic returns a job's bytes and requests by worker and server in a range of time.
func traffic(v *observe.JobView, r page.Range) page.Traffic {
	view := during(v.Job.Sums, r)
	workers, servers := order(v.WorkersByIndex), order(v.ServersByIndex)
	t := page.Traffic{
		Job: v.Job.Scheduler.String(), Range: r,
		Workers: picked(v.WorkersByIndex, workers), Servers: picked(v.ServersByIndex, servers),
		TotalBytes: view.Bytes, LeftHostBytes: view.LeftHost, RepeatedBytes: view.Repeated,
	}
	for _, w := range workers {
		in, out, asked := make([]uint64, len(servers)), make([]uint64, len(servers)), make([]uint64, len(servers))
		for i, s := range servers {
			p := pairOf(&view, w, s)
			in[i], out[i], asked[i] = p.ToServer, p.ToWorker, p.Requests
		}
		t.ToServers, t.ToWorkers, t.Requests = append(t.ToServers, in), append(t.ToWorkers, out), append(t.Requests, asked)
	}
	return t
}

// pairOf returns the entry of a pair; zero if they have not exchanged anything.
func pairOf(v *counts.View, worker, server int) counts.Pair {
	if worker >= len(v.Pairs) || server >= len(v.Pairs[worker]) {
		return counts.Pair{}
	}
	return v.Pairs[worker][server]
}

// Servers implements page.State.
func (a *Agent) Servers(job string, r page.Range) (page.Servers, error) {
	v, err := a.view(job)
	if err != nil {
		return page.Servers{}, err
	}
	return loads(&v, r, a.now()), nil
}

// loads returns the load of each server and worker of a job in a range of time. Rates are over
// the whole range up to now, even if messages have stopped: otherwise a stalled job would show
// its last rate for ever.
func loads(v *observe.JobView, r page.Range, now time.Time) page.Servers {
	view := during(v.Job.Sums, r)
	seconds := view.Seconds()
	if !r.From.IsZero() && view.Start > 0 { // until now, or the end of the range, whenever the last message was
		end := now
		if !r.To.IsZero() && r.To.Before(now) {
			end = r.To
		}
		seconds = max(end.Sub(time.Unix(0, view.Start)).Seconds(), seconds)
	}
	out := page.Servers{
		Job: v.Job.Scheduler.String(), Range: r, Servers: []page.ServerLoad{}, Workers: []page.WorkerLoad{},
	}
	all := uint64(0)
	for _, s := range order(v.ServersByIndex) {
		load := page.ServerLoad{Name: v.ServersByIndex[s], Latency: latencyAt(view.ByServer, s)}
		for w := range view.Pairs {
			p := pairOf(&view, w, s)
			load.Requests += p.Requests
			load.BytesIn += p.ToServer
			load.BytesOut += p.ToWorker
		}
		all += load.BytesIn + load.BytesOut
		out.Servers = append(out.Servers, load)
	}
	// Shares need the sum over all servers first.
	for i := range out.Servers {
		// Without any traffic shares stay 0 instead of becoming NaN, which JSON cannot have.
		if s := &out.Servers[i]; all > 0 {
			s.Share = float64(s.BytesIn+s.BytesOut) / float64(all)
		}
	}
	slow := map[int]bool{}
	for _, w := range view.Stragglers() {
		slow[w] = true
	}
	for _, w := range order(v.WorkersByIndex) {
		out.Workers = append(out.Workers, workerLoad(v, &view, w, slow[w], seconds))
	}
	return out
}

// workerLoad returns the load of one worker, over all servers. Rates are over so many seconds.
func workerLoad(v *observe.JobView, view *counts.View, w int, straggler bool, seconds float64) page.WorkerLoad {
	load := page.WorkerLoad{Name: v.WorkersByIndex[w], Straggler: straggler, Latency: latencyAt(view.ByWorker, w)}
	for s := range v.ServersByIndex {
		p := pairOf(view, w, s)
		load.Requests += p.Requests
		// Seen from the worker: what goes to servers leaves it.
		load.BytesOut += p.ToServer
		load.BytesIn += p.ToWorker
	}
	// The lists are only as long as the highest worker that has sent something.
	if w < len(view.Timestamps) {
		load.Timestamp = int64(view.Timestamps[w])
	}
	if w < len(view.Steps) {
		load.Steps = view.Steps[w]
	}
	if w < len(view.Steps) && seconds > 0 {
		load.StepsPerSecond = float64(view.Steps[w]) / seconds
	}
	return load
}

// latencyAt returns the latencies at an index, none if nothing was counted there yet.
func latencyAt(all []*history.Latency, i int) page.Latency {
	if i >= len(all) {
		return page.Latency{}
	}
	return latency(all[i])
}
