package agent

import (
	"math"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/agent/web"
	"github.com/psidecar/psidecar/planner/api"
)

// Sizes of a report.
const (
	reportBlocks = 256
	reportHot    = 256
)

// Reports returns what there is to report of each job.
func (a *Agent) Reports() []*api.JobReport {
	var reports []*api.JobReport
	for _, v := range a.observer.Jobs() {
		if a.shows(v.Job.Scheduler.String()) {
			reports = append(reports, jobReport(&v))
		}
	}
	return reports
}

// SetPlanner makes the agent tell of its link to a planner.
func (a *Agent) SetPlanner(state func() *web.Planner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.planner = state
}

func jobReport(v *observe.JobView) *api.JobReport {
	size, totals, all := v.Job.Sums.Table.Size(), v.Job.Sums.Totals(), v.Job.Sums.All()
	r := &api.JobReport{
		Job: v.Job.Scheduler.String(), Dialect: v.Dialect.String(),
		Servers: uint32(v.Servers), Workers: uint32(v.Workers),
		SampledOneIn: max(v.SampledOneIn, 1), Exact: size.Exact() && v.SampledOneIn <= 1,
		DistinctKeys: size.Keys, Bytes: totals.Bytes, LeftHostBytes: totals.LeftHost,
		FirstUnixNanos: v.First, LastUnixNanos: v.Last,
	}
	for _, n := range v.Nodes {
		node := &api.Node{Name: n.Name, Role: n.Role, Rank: int32(n.Rank), Local: n.Process.PID != 0}
		if n.Address.IsValid() {
			node.Address = n.Address.String()
		}
		r.Nodes = append(r.Nodes, node)
	}
	workers := order(v.WorkersByIndex)
	reportUses(r, v, workers, size.Exact())
	for _, w := range workers {
		for s, server := range v.ServersByIndex {
			if p := pairOf(&all, w, s); server != "" && p.ToServer+p.ToWorker > 0 {
				r.Traffic = append(r.Traffic, &api.Traffic{
					Worker: v.WorkersByIndex[w], Server: server,
					ToServer: p.ToServer, ToWorker: p.ToWorker, Requests: p.Requests,
				})
			}
		}
		if w < len(all.Steps) {
			r.Steps = append(r.Steps, &api.Steps{Worker: v.WorkersByIndex[w], Steps: all.Steps[w]})
		}
	}
	hot := hottest(v, reportHot)
	for _, k := range hot.Hottest {
		r.Hottest = append(r.Hottest, &api.HotKey{Key: uint64(k.Key), Accesses: k.Accesses, Bytes: k.Bytes, Workers: k.Workers})
	}
	return r
}

// reportUses reports the blocks of keys. Their limits are such that those of
// several hosts nest, as far as every key is counted one by one; folded blocks
// stay as they are.
func reportUses(r *api.JobReport, v *observe.JobView, workers []int, exact bool) {
	table := v.Job.Sums.Table
	blocks := table.Blocks(0, math.MaxUint64, reportBlocks)
	if exact {
		blocks = blocks[:0]
		firsts := table.Firsts(reportBlocks)
		for i, first := range firsts {
			last := uint64(math.MaxUint64)
			if i+1 < len(firsts) {
				last = firsts[i+1] - 1
			}
			for _, b := range table.Blocks(first, last, 1) {
				b.First, b.Last = first, last
				blocks = append(blocks, b)
			}
		}
	}
	for _, b := range blocks {
		r.Blocks = append(r.Blocks, &api.Block{First: b.First, Last: b.Last, Keys: b.Keys})
	}
	for _, w := range workers {
		u := &api.Use{Worker: v.WorkersByIndex[w]}
		for _, b := range blocks {
			var s counts.Sums
			if w < len(b.Workers) {
				s = b.Workers[w]
			}
			u.Pulls = append(u.Pulls, s[counts.Pulls])
			u.Pushes = append(u.Pushes, s[counts.Pushes])
			u.PulledBytes = append(u.PulledBytes, s[counts.PulledBytes])
			u.PushedBytes = append(u.PushedBytes, s[counts.PushedBytes])
		}
		r.Uses = append(r.Uses, u)
	}
}
