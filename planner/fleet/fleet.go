// Package fleet shows what the agents of many hosts report as one: the
// planner's page and interface.
//
// In come the newest reports of all hosts; out goes a [page.State]. Each
// message was counted by the host that sent it, so sums over hosts count it
// once. The command psidecar planner calls it.
package fleet

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// State is what all reports say together. It implements page.State.
type State struct {
	Version string
	Host    string
	Started time.Time
	// Reports returns the newest report of each host.
	Reports func() []*api.HostReport
	// Lately returns those of hosts that have reported a moment ago: what the others say
	// that runs there may be over. Nil: all have.
	Lately func() []*api.HostReport
	// Past returns what each host had reported by some time, and when that
	// came: the first that is known of it, if that is later. Nil: nothing is
	// known of the past.
	Past func(time.Time) (reports []*api.HostReport, at []time.Time)
	// Unready says why this planner does not serve; nil, or a nil error: it does.
	Unready func() error
	// Measures, where not nil, returns what proxies say of jobs' measures, by host.
	// Set before the state is served.
	Measures func() [][]measure.Line
	// Forgetful: the planner moves no keys, since it forgets where they are when it ends.
	Forgetful bool

	recent recentTitles
}

// Ready implements page.State: a planner without agents is fine.
func (s *State) Ready() error {
	if s.Unready == nil {
		return nil
	}
	return s.Unready()
}

// reported is what hosts report of one job.
type reported struct {
	hosts   []string
	reports []*api.JobReport // by host
}

// byJob returns the reports of each job, in which every node has one name: an
// agent that does not know another host's node by rank calls it by its
// address, and the agent there knows better.
func (s *State) byJob() map[string]*reported {
	jobs := map[string]*reported{}
	for _, host := range s.Reports() {
		for _, j := range host.GetJobs() {
			of := jobs[j.GetJob()]
			if of == nil {
				of = &reported{}
				jobs[j.GetJob()] = of
			}
			of.hosts, of.reports = append(of.hosts, host.GetHost()), append(of.reports, j)
		}
	}
	for _, of := range jobs {
		better := betterNames(of.reports)
		for i, r := range of.reports {
			of.reports[i] = renamed(r, better)
		}
	}
	return jobs
}

// betterNames returns nodes' names by role@address.
func betterNames(reports []*api.JobReport) map[string]string {
	better := map[string]string{}
	for _, r := range reports {
		for _, n := range r.GetNodes() {
			if n.GetRank() >= 0 && n.GetAddress() != "" {
				better[n.GetRole()+"@"+n.GetAddress()] = n.GetName()
			}
		}
	}
	return better
}

// renamed returns the report with better names: itself where it has none that is better
// known, which is as a rule, and a large job's are millions of names.
func renamed(r *api.JobReport, better map[string]string) *api.JobReport {
	known := func(name *string) bool {
		if !strings.Contains(*name, "@") {
			return false
		}
		_, ok := better[*name]
		return ok
	}
	some := false
	for name := range namesIn(r) {
		if some = known(name); some {
			break
		}
	}
	if !some {
		return r
	}
	r = proto.CloneOf(r)
	for name := range namesIn(r) {
		if known(name) {
			*name = better[*name]
		}
	}
	return r
}

// namesIn returns where the report has nodes' names.
func namesIn(r *api.JobReport) iter.Seq[*string] {
	return func(yield func(*string) bool) {
		for _, n := range r.GetNodes() {
			if !yield(&n.Name) {
				return
			}
		}
		for _, u := range r.GetUses() {
			if !yield(&u.Worker) {
				return
			}
		}
		for _, p := range r.GetTraffic() {
			if !yield(&p.Worker) || !yield(&p.Server) {
				return
			}
		}
		for _, p := range r.GetSteps() {
			if !yield(&p.Worker) {
				return
			}
		}
		for _, l := range slices.Concat(r.GetByWorker(), r.GetByServer()) {
			if !yield(&l.Name) {
				return
			}
		}
		for _, s := range r.GetStalls() {
			if !yield(&s.Who) || !yield(&s.On) {
				return
			}
		}
	}
}

func (s *State) job(name string) ([]*api.JobReport, error) {
	of := s.byJob()[name]
	if of == nil {
		return nil, fmt.Errorf("%w: %q", page.ErrNoJob, name)
	}
	return of.reports, nil
}

// Jobs implements page.State.
func (s *State) Jobs() []page.Job {
	var jobs []page.Job
	for name, of := range s.byJob() {
		jobs = append(jobs, joined(name, of))
	}
	s.measure(jobs)
	s.call(jobs)
	slices.SortFunc(jobs, func(a, b page.Job) int { return strings.Compare(a.Name, b.Name) })
	return jobs
}

func joined(name string, of *reported) page.Job {
	reports := of.reports
	steps := paceOf(reports)
	j := page.Job{
		Name: name, Exact: true, StepsPerSecond: steps.median, BytesPerSecond: steps.bytes, Stragglers: steps.stragglers,
		Latency: latency(timesOf(reports, (*api.JobReport).GetByWorker).all()),
	}
	j.DistinctKeys, j.KeysAtLeast = distinct(reports)
	for _, r := range reports {
		j.Dialect = cmp.Or(j.Dialect, r.GetDialect())
		j.Servers, j.Workers = max(j.Servers, int(r.GetServers())), max(j.Workers, int(r.GetWorkers()))
		j.SampledOneIn = max(j.SampledOneIn, r.GetSampledOneIn())
		j.Exact = j.Exact && r.GetExact()
		c := r.GetConnections() // each is known by the host that sends on it
		j.Connections.Synced += int(c.GetSynced())
		j.Connections.Unsynced += int(c.GetUnsynced())
		j.Connections.Unplaced += int(c.GetUnplaced())
		j.Connections.Missed += c.GetMissedBytes()
		j.Bytes += r.GetBytes()
		j.LeftHostBytes += r.GetLeftHostBytes()
		if first := time.Unix(0, r.GetFirstUnixNanos()); j.FirstSeen.IsZero() || first.Before(j.FirstSeen) {
			j.FirstSeen = first
		}
		if last := time.Unix(0, r.GetLastUnixNanos()); last.After(j.LastSeen) {
			j.LastSeen = last
		}
		for _, u := range r.GetUses() {
			for i := range u.GetPulls() {
				j.Accesses += u.GetPulls()[i] + u.GetPushes()[i]
			}
		}
	}
	j.Nodes = nodesOf(of)
	goesOn(&j, reports, time.Now())
	return j
}

// nodesOf returns the job's nodes, as the hosts know them that they run on, else
// as any other does.
func nodesOf(of *reported) (list []page.Node) {
	nodes := map[string]page.Node{}
	for i, r := range of.reports {
		for _, n := range r.GetNodes() {
			if old, ok := nodes[n.GetName()]; ok && old.Local {
				continue
			}
			node := page.Node{Name: n.GetName(), Role: n.GetRole(), Rank: int(n.GetRank()), Address: n.GetAddress(), Local: n.GetLocal()}
			if n.GetLocal() {
				node.Host = of.hosts[i]
			}
			if p := n.GetPod(); p != nil {
				node.PodName = &page.Pod{Namespace: p.GetNamespace(), Name: p.GetName(), Node: p.GetNode()}
			}
			nodes[n.GetName()] = node
		}
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		list = append(list, nodes[name])
	}
	return list
}

// names returns the distinct names, worker2 before worker10.
func names(all map[string]bool) []string {
	return slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		as, bs := strings.TrimRight(a, "0123456789"), strings.TrimRight(b, "0123456789")
		if as != bs {
			return strings.Compare(as, bs)
		}
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
}

// Traffic implements page.State.
func (s *State) Traffic(job string, r page.Range) (page.Traffic, error) {
	reports, r, err := s.during(job, r)
	if err != nil {
		return page.Traffic{}, err
	}
	t := traffic(job, reports)
	t.Range = r
	return t, nil
}

func traffic(job string, reports []*api.JobReport) page.Traffic {
	workers, servers := map[string]bool{}, map[string]bool{}
	t := page.Traffic{Job: job}
	for _, r := range reports {
		t.TotalBytes += r.GetBytes()
		t.LeftHostBytes += r.GetLeftHostBytes()
		t.RepeatedBytes += r.GetRepeatedBytes()
		for _, p := range r.GetTraffic() {
			if !workers[p.GetWorker()] {
				workers[p.GetWorker()] = true
			}
			if !servers[p.GetServer()] {
				servers[p.GetServer()] = true
			}
		}
	}
	t.Workers, t.Servers = names(workers), names(servers)
	number := func(names []string) map[string]int {
		numbers := make(map[string]int, len(names))
		for i, name := range names {
			numbers[name] = i
		}
		return numbers
	}
	rows, columns := number(t.Workers), number(t.Servers)
	for range t.Workers {
		t.ToServers, t.ToWorkers, t.Requests = append(t.ToServers, make([]uint64, len(t.Servers))), append(t.ToWorkers, make([]uint64, len(t.Servers))), append(t.Requests, make([]uint64, len(t.Servers)))
	}
	for _, r := range reports {
		for _, p := range r.GetTraffic() {
			w, s := rows[p.GetWorker()], columns[p.GetServer()]
			t.ToServers[w][s] += p.GetToServer()
			t.ToWorkers[w][s] += p.GetToWorker()
			t.Requests[w][s] += p.GetRequests()
		}
	}
	return t
}
