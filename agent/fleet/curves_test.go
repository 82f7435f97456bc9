package fleet

import (
	"math"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent/web"
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
	note := func(delay time.Duration) {
		now = now.Add(5 * time.Second)
		// Host a knows its server by rank, b calls it by its address.
		c.Note(now, []*api.HostReport{report("a", "worker0", "servera", now.Add(-delay)), report("b", "worker1", "server@x:a", now.Add(-delay/2))})
	}
	for i := range 4 {
		note(time.Duration(i%2) * 2 * time.Second) // reports are not as regular as looks
	}
	started["b"], incarnation["b"] = now, 3 // an agent begins anew
	note(0)
	for range 3 {
		note(2 * time.Second)
	}
	h, err := c.History("j", web.Range{})
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
		near("left hosts", p.LeftHostPerSecond, 100)
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
	if h, _ := c.History("", web.Range{From: now.Add(-8 * time.Second)}); len(h.Points) != 2 || h.Points[0].CPUPercent == 0 || h.Points[0].BytesPerSecond != 0 {
		t.Errorf("of the hosts alone: %+v", h.Points)
	}
}
