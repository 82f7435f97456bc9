// Package fleet shows the reports of many hosts' agents as one fleet: it is the data behind the
// planner's page and its API.
//
// A [State] turns the newest report of each host into a [page.State]; [Curves] keeps the last hour.
// Both compute their answers from reports when asked and keep little of their own.
//
// How figures add up follows from who counts what. The host that sends a message counts it, so
// bytes, accesses and traffic are sums over hosts. Distinct keys are not: hosts use some of the
// same keys, so a sum would count them twice and only bounds are known (distinct, skew). Times of
// requests are merged as distributions. Reports hold sums since the agent's start, so a range of
// time is the difference of two reports (during.go), and an agent that restarts begins a new
// series, told apart by its incarnation.
//
// Reports are shared with other readers and must not be changed; what needs other names works on a
// copy (renamed).
//
// # Files
//
//   - fleet.go lists jobs and nodes and the traffic between them; hosts.go lists the hosts.
//   - keys.go has the hottest keys, skew and the number of keys.
//   - heatmap.go and bytime.go have the heatmap, by worker and by time.
//   - servers.go has rates, latency and stragglers.
//   - during.go takes differences of reports; curves.go samples them over the last hour.
//   - stalls.go says whether a job makes progress, titles.go what it is called.
//   - plan.go, codecs.go and measures.go show plans, codecs and measures.
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

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// A State is what all reports say together. It implements page.State. Its exported fields are set
// before it is used; its methods may then be called from any goroutine.
type State struct {
	Version string
	Host    string
	Started time.Time
	// Reports returns the newest report of each host.
	Reports func() []*api.HostReport
	// Lately returns the reports of hosts that have reported a moment ago. What other hosts say is
	// running may be over. With nil all reports count.
	Lately func() []*api.HostReport
	// Past returns what each host had reported by some time, and when that came: its first known
	// report, if that is later. With nil nothing is known of the past.
	Past func(time.Time) (reports []*api.HostReport, at []time.Time)
	// Measures, if not nil, returns what proxies say of jobs' measures, by host.
	Measures func() [][]measure.Line
	// Forgetful says that the planner moves no keys, since it forgets where they are when it ends.
	Forgetful bool

	recent recentTitles
}

// Ready implements page.State. A planner without agents is ready.
func (s *State) Ready() error { return nil }

// A reported is what hosts report of one job: reports[i] is of hosts[i].
type reported struct {
	hosts   []string
	reports []*api.JobReport // by host
}

// byJob returns the newest reports by job, with one name for each node. An agent that does not know
// the rank of another host's node names it by its address; the agent on that host knows the rank,
// so its name is used for all.
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
		// The names of a job's nodes come from all hosts, so this waits until all reports are
		// there.
		better := betterNames(of.reports)
		for i, r := range of.reports {
			of.reports[i] = renamed(r, better)
		}
	}
	return jobs
}

// betterNames returns the names of nodes with a known rank, by role@address, which is how agents
// name them otherwise.
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

// renamed returns a report with better names. It returns r itself if no name changes, which is the
// normal case: a large job has millions of names, and a copy is expensive.
func renamed(r *api.JobReport, better map[string]string) *api.JobReport {
	known := func(name *string) bool {
		if !strings.Contains(*name, "@") {
			return false
		}
		_, ok := better[*name]
		return ok
	}
	// Look first, copy second: most reports need no copy.
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

// namesIn yields pointers to all names of nodes in a report, so that one loop can both look for and
// replace them.
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

// job returns the newest reports of a job, or an error that wraps page.ErrNoJob.
func (s *State) job(name string) ([]*api.JobReport, error) {
	of := s.byJob()[name]
	if of == nil {
		return nil, fmt.Errorf("%w: %q", page.ErrNoJob, name)
	}
	return of.reports, nil
}

// Jobs implements page.State. It is the most expensive answer: it visits everything that is
// reported of all jobs.
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

// joined merges what hosts report of a job. Counters are summed; properties of the job, such as its
// number of servers, are the maximum, since an agent that has not seen the node table reports 0.
func joined(name string, of *reported) page.Job {
	reports := of.reports
	// The pace needs the reports of all hosts together: which of them are silent shows only beside
	// the others.
	steps := paceOf(reports)
	j := page.Job{
		Name: name, Exact: true, StepsPerSecond: steps.median, BytesPerSecond: steps.bytes, Stragglers: steps.stragglers,
		Latency: latency(timesOf(reports, (*api.JobReport).GetByWorker).all()),
	}
	// These two are not sums, as bytes and accesses below are.
	j.DistinctKeys, j.KeysAtLeast = distinct(reports)
	for _, r := range reports {
		j.Dialect = cmp.Or(j.Dialect, r.GetDialect())
		j.Servers, j.Workers = max(j.Servers, int(r.GetServers())), max(j.Workers, int(r.GetWorkers()))
		j.SampledOneIn = max(j.SampledOneIn, r.GetSampledOneIn())
		j.Exact = j.Exact && r.GetExact()
		c := r.GetConnections()
		// A connection's messages are counted by the host that sends them, so no connection is
		// counted twice.
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

// nodesOf returns the job's nodes by name. What the host on which a node runs reports of it comes
// before what others report.
func nodesOf(of *reported) (list []page.Node) {
	nodes := map[string]page.Node{}
	for i, r := range of.reports {
		for _, n := range r.GetNodes() {
			// Only the host itself knows the pod, and that the node runs there.
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

// names returns names in order, with worker2 before worker10.
func names(all map[string]bool) []string {
	return slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		// Within one prefix a shorter number is a smaller one.
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
	t, err := traffic(job, reports)
	t.Range = r
	return t, err
}

// maxCells is how many cells a table of nodes by nodes, or by keys, has at most. The names of nodes
// come from agents: a list of them in one report takes little memory, but a table of two does not.
const maxCells = 1 << 24

// traffic returns the job's traffic as matrices of workers and servers. Rows and columns are looked
// up in maps: a job of a thousand hosts has a million pairs. It fails if they have more than
// maxCells.
func traffic(job string, reports []*api.JobReport) (page.Traffic, error) {
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
	if len(workers)*len(servers) > maxCells {
		return page.Traffic{}, fmt.Errorf("job %.300q: traffic of %d workers with %d servers cannot be shown: at most %d pairs", job, len(workers), len(servers), maxCells)
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
	return t, nil
}
