package fleet

import (
	"math"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/planner/api"
)

// What two hosts report adds up to the job's rates, whenever their reports were
// made, and whether their agents or the planner have begun since.
func TestCurves(t *testing.T) {
	var c Curves
	began := time.Unix(10_000, 0)
	started := map[string]time.Time{"a": began.Add(-time.Hour), "b": began.Add(-time.Hour)}
	incarnation := map[string]uint64{"a": 1, "b": 2}
	// 100 bytes and 2 steps a second, 5 requests of 10 ms, half a core.
	report := func(host, worker, server string, made time.Time) *api.HostReport {
		s := uint64(made.Sub(started[host]).Seconds())
		return &api.HostReport{Host: host, Incarnation: incarnation[host], UnixNanos: made.UnixNano(),
			Agent: &api.AgentReport{StartedUnixNanos: started[host].UnixNano(), ProcessSeconds: float64(s) / 2, KernelSeconds: float64(s) / 100,
				Carries: host == "a", CarriedJobBytes: 80 * s, CarriedFarBytes: 20 * s},
			Jobs: []*api.JobReport{{Job: "j", Bytes: 100 * s, LeftHostBytes: 50 * s,
				Nodes:    []*api.Node{{Name: "server" + host, Role: "server", Rank: 1, Address: "x:" + host}},
				Steps:    []*api.Steps{{Worker: worker, Steps: 2 * s}},
				Traffic:  []*api.Traffic{{Worker: worker, Server: server, ToServer: 30 * s}, {Worker: worker, Server: "serverb", ToWorker: 10 * s}},
				ByServer: []*api.Latency{{Name: server, Micros: []uint64{10_000}, Counts: []uint64{5 * s}}},
			}}}
	}
	now := began
	var kept []*api.HostReport
	var came []time.Time
	c.Kept = func() ([]*api.HostReport, []time.Time) { return kept, came }
	note := func(delay time.Duration) {
		now = now.Add(5 * time.Second)
		// Host a knows its server by rank, b calls it by its address.
		reports := []*api.HostReport{report("a", "worker0", "servera", now.Add(-delay)), report("b", "worker1", "server@x:a", now.Add(-delay/2))}
		c.Note(now, reports)
		kept, came = append(kept, reports...), append(came, now.Add(-delay), now.Add(-delay/2))
	}
	for i := range 4 {
		note(time.Duration(i%2) * 2 * time.Second) // reports are not as regular as looks
	}
	started["b"], incarnation["b"] = now, 3 // an agent starts over
	note(0)
	for range 3 {
		note(2 * time.Second)
	}
	h, err := c.History("j", page.HistoryQuery{})
	if err != nil || len(h.Points) != 7 {
		t.Fatalf("%d points, %v; want 7", len(h.Points), err)
	}
	for i, p := range h.Points {
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got/want-1) > 0.01 {
				t.Errorf("point %d: %s %v, want %v", i, what, got, want)
			}
		}
		near("steps/s", p.StepsPerSecond, 2)
		near("bytes/s", p.BytesPerSecond, 200)
		near("left hosts", *p.LeftHostPerSecond, 100)
		near("p50", p.P50, 0.01)
		near("skew", p.Skew, 1.5) // 60 of 80 bytes at one of two servers
		near("processor", p.CPUPercent, 100)
		near("kernel", p.KernelPercent, 2)
		if p.SavedPerSecond == nil {
			t.Errorf("point %d: nothing is said of bytes saved", i)
		} else {
			near("saved", *p.SavedPerSecond, 120)
		}
	}
	if h, _ := c.History("", page.HistoryQuery{Range: page.Range{From: now.Add(-8 * time.Second)}}); len(h.Points) != 2 || h.Points[0].CPUPercent == 0 || h.Points[0].BytesPerSecond != 0 {
		t.Errorf("of the hosts alone: %+v", h.Points)
	}
	checkSelection(t, &c)
}

// What a host had seen before its first report came is not of the time in which that
// came, unless its agent has begun since.
func TestCurvesOfANewHost(t *testing.T) {
	began := time.Unix(10_000, 0)
	report := func(host string, started, made time.Time) *api.HostReport {
		return &api.HostReport{Host: host, Incarnation: 1, UnixNanos: made.UnixNano(), Agent: &api.AgentReport{StartedUnixNanos: started.UnixNano()},
			Jobs: []*api.JobReport{{Job: "j", Bytes: uint64(100 * made.Sub(started).Seconds())}}}
	}
	for name, tc := range map[string]struct {
		started time.Time
		want    float64
	}{"that has run for long": {began.Add(-time.Hour), 0}, "that has begun since": {began.Add(time.Second), 80}} {
		t.Run(name, func(t *testing.T) {
			var c Curves
			old := func(at time.Time) *api.HostReport { return report("a", began.Add(-time.Hour), at) }
			c.Note(began, []*api.HostReport{old(began)})
			for _, at := range []time.Time{began.Add(5 * time.Second), began.Add(10 * time.Second)} {
				c.Note(at, []*api.HostReport{old(at), report("b", tc.started, at)})
			}
			h, err := c.History("j", page.HistoryQuery{})
			if err != nil || len(h.Points) != 2 {
				t.Fatalf("%d points, %v", len(h.Points), err)
			}
			if first, second := h.Points[0].BytesPerSecond, h.Points[1].BytesPerSecond; math.Abs(first-100-tc.want) > 1 || math.Abs(second-200) > 1 {
				t.Errorf("%v and %v bytes/s, want %v and 200", first, second, 100+tc.want)
			}
		})
	}
}

// checkSelection looks at the curves of some of the nodes: the first point may be
// of a time before the first report.
func checkSelection(t *testing.T, c *Curves) {
	t.Helper()
	for _, tc := range []struct {
		of          history.Selection
		bytes, skew float64
		requests    bool
	}{
		{history.Selection{Workers: []string{"worker0"}}, 40, 1.5, false}, // 30 and 10 at two servers; workers' times are not in these reports
		{history.Selection{Servers: []string{"serverb"}}, 20, 1, false},
		{history.Selection{Servers: []string{"servera"}}, 60, 1, true},
		{history.Selection{Workers: []string{"worker1"}, Servers: []string{"servera"}}, 30, 1, false},
	} {
		h, err := c.History("j", page.HistoryQuery{Selection: tc.of})
		if err != nil || len(h.Points) < 5 {
			t.Fatalf("%v: %d points, %v", tc.of, len(h.Points), err)
		}
		bytes, steps := 0.0, 0.0
		middle := h.Points[1 : len(h.Points)-1]
		for _, p := range middle {
			bytes += p.BytesPerSecond / float64(len(middle))
			steps += p.StepsPerSecond / float64(len(middle))
			if math.Abs(p.Skew/tc.skew-1) > 0.01 || p.LeftHostPerSecond != nil || p.Requests > 0 != tc.requests {
				t.Errorf("%v: %+v", tc.of, p)
			}
		}
		if math.Abs(bytes/tc.bytes-1) > 0.1 || math.Abs(steps/2-1) > 0.1 {
			t.Errorf("%v: %v bytes/s and %v steps/s, want %v and 2", tc.of, bytes, steps, tc.bytes)
		}
	}
}
