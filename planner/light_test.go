package planner

import (
	"fmt"
	"testing"
	"time"

	"github.com/psidecar/psidecar/planner/api"
)

// full is a report with all large parts.
func full(host string, sequence uint64) *api.HostReport {
	return &api.HostReport{Host: host, Incarnation: 7, Sequence: sequence, UnixNanos: int64(sequence), Jobs: []*api.JobReport{{
		Job: "j:1", Bytes: sequence, Blocks: []*api.Block{{Last: 9}}, Uses: []*api.Use{{Worker: "worker0", Pulls: []uint64{sequence}, Pushes: []uint64{0}, PulledBytes: []uint64{0}, PushedBytes: []uint64{0}}},
		Nodes:   []*api.Node{{Name: "server0", Local: true}, {Name: "server1"}},
		Traffic: []*api.Traffic{{Worker: "worker0", Server: "server0", ToServer: sequence}}, Hottest: []*api.HotKey{{Key: 1}}, Skew: []*api.SkewPoint{{Keys: 1}},
		ByWorker: []*api.Latency{{Name: "worker0"}}, ByServer: []*api.Latency{{Name: "server0"}},
	}}}
}

// light is the same, as it is when the planner has not asked for a whole one.
func light(host string, sequence uint64) *api.HostReport {
	return &api.HostReport{Host: host, Incarnation: 7, Sequence: sequence, UnixNanos: int64(sequence), Light: true,
		Jobs: []*api.JobReport{{Job: "j:1", Bytes: sequence, Nodes: []*api.Node{{Name: "server0", Local: true}}}}}
}

// A light report brings its own figures, and leaves the large parts of the last
// whole one; of another start of the agent nothing is left.
func TestLightReports(t *testing.T) {
	s := &ReportStore{}
	own := s.openSession()
	taken(t, s, own, full("a", 1))
	taken(t, s, own, light("a", 2))
	check := func(r *api.HostReport, traffic, nodes int, whole int64) {
		t.Helper()
		j := r.GetJobs()[0]
		for what, n := range map[string]int{"blocks": len(j.GetBlocks()), "uses": len(j.GetUses()), "traffic": len(j.GetTraffic()), "hottest": len(j.GetHottest()),
			"skew": len(j.GetSkew()), "by_worker": len(j.GetByWorker()), "by_server": len(j.GetByServer())} {
			if n != traffic {
				t.Errorf("%d %s, want %d", n, what, traffic)
			}
		}
		if len(j.GetNodes()) != nodes || r.GetWholeUnixNanos() != whole {
			t.Errorf("%d nodes, whole at %d; want %d, %d", len(j.GetNodes()), r.GetWholeUnixNanos(), nodes, whole)
		}
	}
	if r := s.All()[0]; r.GetJobs()[0].GetBytes() != 2 {
		t.Errorf("the bytes are those of report %d", r.GetJobs()[0].GetBytes())
	}
	check(s.All()[0], 1, 2, 1)
	again := light("a", 3)
	again.Incarnation = 8
	taken(t, s, own, again)
	check(s.All()[0], 0, 1, 0)
}

// The memory that is said to be kept is what the reports take, whole or light.
func TestLightMemory(t *testing.T) {
	s := &ReportStore{}
	own := s.openSession()
	for i := range uint64(20) {
		r := light("a", 2*i+2)
		if i%3 == 0 {
			taken(t, s, own, full("a", 2*i+1))
		}
		taken(t, s, own, r)
		held := HeldBytes(s.All()[0])
		if s.memory < held || s.memory > held+1024 {
			t.Fatalf("after %d reports %d bytes are counted, %d are held", s.hosts["a"].report.GetSequence(), s.memory, held)
		}
	}
}

// Of many hosts with large reports so many are asked for whole ones in a second as
// the rate allows, each in its turn; a few are asked each time.
func TestWholeReportsInTurn(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &ReportStore{now: func() time.Time { return now }}
	const hosts, size = 24, 1 << 20
	sessions := map[string]*session{}
	asked := map[string]int{}
	for second := range uint64(20) {
		s.Watch()
		for i := range hosts {
			host := fmt.Sprint(i)
			if sessions[host] == nil {
				sessions[host] = s.openSession()
			}
			r := light(host, second+1)
			if asked[host] > 0 && s.hosts[host].whole < uint64(asked[host]) {
				r = full(host, second+1)
				r.Jobs[0].Hottest = make([]*api.HotKey, size/300)
				for k := range r.GetJobs()[0].GetHottest() {
					r.Jobs[0].Hottest[k] = &api.HotKey{}
				}
			}
			taken(t, s, sessions[host], r)
			if s.answer(r).GetWhole() {
				asked[host] = int(second) + 1
			}
		}
		now = now.Add(time.Second)
	}
	bytes, least := 0, uint64(1<<62)
	for _, e := range s.hosts {
		bytes += e.large
		least = min(least, e.whole)
	}
	round := uint64(bytes/wholeRate) + 2
	if bytes < hosts*size/4 || least+2*round < 20 {
		t.Errorf("%d bytes of large parts, a round takes %d s, and the oldest are of second %d of 20", bytes, round, least)
	}
	few := &ReportStore{now: func() time.Time { return now }}
	own := few.openSession()
	wholes := 0
	for i := range uint64(200) {
		if now = now.Add(time.Second); i < 5 {
			few.Watch()
		}
		r := full("a", i+1)
		taken(t, few, own, r)
		a := few.answer(r)
		if a.GetWhole() {
			wholes++
		}
		if i < 5 && !a.GetWhole() || !a.GetAsks() || a.GetWindowKeys() != 0 {
			t.Errorf("a single host that somebody looks at is answered %v", a)
		}
	}
	// At once for as long as somebody looked and a while after, then rarely.
	if want := 5 + int(unwatchedAfter/time.Second) + 185/int(unwatched/time.Second); wholes < want-1 || wholes > want+1 {
		t.Errorf("a single host is asked for %d whole reports, want %d", wholes, want)
	}
}
