package planner

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/fleet"
)

// Figures of one host that are no numbers do not keep the rest from being shown.
func TestFiguresAreNumbers(t *testing.T) {
	s := &ReportStore{}
	for host, x := range map[string]float64{"a": math.NaN(), "b": math.Inf(1), "c": -1, "d": math.MaxFloat64, "e": 12.5} {
		taken(t, s, s.openSession(), &api.HostReport{
			Host:  host,
			Agent: &api.AgentReport{CpuPercent: x, KernelPercent: x, CpuSeconds: x, ProcessSeconds: x, KernelSeconds: x},
			Jobs:  []*api.JobReport{{Job: "j", Sketch: &api.Sketch{Percent: x}}},
		})
	}
	state := &fleet.State{Reports: s.All}
	agent := state.Agent()
	if _, err := json.Marshal(agent); err != nil || agent.CPUPercent != 12.5 || agent.KernelPercent != 12.5 || agent.CPUSeconds != 12.5 {
		t.Errorf("the agents use %v%% and %v%% of a core, %v s: %v", agent.CPUPercent, agent.KernelPercent, agent.CPUSeconds, err)
	}
	if _, err := json.Marshal(state.Jobs()); err != nil {
		t.Error(err)
	}
}

// What a report may say of a job is bounded, beside the memory that it takes.
func TestListsHaveABound(t *testing.T) {
	latencies := make([]*api.Latency, maxLatencies+1)
	for i := range latencies {
		latencies[i] = &api.Latency{Name: fmt.Sprint(i)}
	}
	uses := make([]*api.Use, maxUses+1)
	for i := range uses {
		uses[i] = &api.Use{}
	}
	traffic := make([]*api.Traffic, maxTraffic+1)
	for i := range traffic {
		traffic[i] = &api.Traffic{}
	}
	hottest := make([]*api.HotKey, maxHottest+1)
	for i := range hottest {
		hottest[i] = &api.HotKey{}
	}
	for name, j := range map[string]*api.JobReport{
		"latencies of workers": {ByWorker: latencies}, "latencies of servers": {ByServer: latencies}, "uses": {Uses: uses},
		"traffic": {Traffic: traffic}, "hottest": {Hottest: hottest}, "steps": {Steps: []*api.Steps{{Worker: "worker0", Steps: maxSteps + 1}}},
	} {
		s := &ReportStore{}
		if err := s.acceptReport(s.openSession(), &api.HostReport{Host: "a", Jobs: []*api.JobReport{j}}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The history counts the large parts of each whole report, whatever its number.
func TestPastCountsPartsOfOneNumber(t *testing.T) {
	now := time.Unix(10_000, 0)
	s := &ReportStore{now: func() time.Time { return now }}
	own := s.openSession()
	held := 0
	for _, blocks := range []int{0, 1000, 10_000} {
		now = now.Add(HistoryEvery)
		r := full("a", 1)
		j := r.GetJobs()[0]
		j.Uses, j.Blocks = nil, nil
		for range blocks {
			j.Blocks = append(j.Blocks, &api.Block{})
		}
		held += HeldBytes(r)
		taken(t, s, own, r)
	}
	if s.history.bytes < held/2 {
		t.Errorf("of the history %d bytes are counted, it has about %d", s.history.bytes, held)
	}
	now = now.Add(2 * HistoryKept) // only the next one stays, with the parts of the last whole one
	taken(t, s, own, light("a", 2))
	if left := HeldBytes(s.All()[0]); s.history.bytes < left/2 || s.history.bytes > 2*left {
		t.Errorf("of the history %d bytes are counted, it has about %d", s.history.bytes, left)
	}
}
