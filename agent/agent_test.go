package agent

import (
	"bytes"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/require"
)

func TestCost(t *testing.T) {
	var c cost
	start := time.Unix(100, 0)
	if c.updateCost(start, 5, 1); c.percent+c.inside != 0 {
		t.Error("one look tells no rate")
	}
	if c.updateCost(start.Add(2*time.Second), 5.5, 1.1); math.Abs(c.percent-25) > 0.1 || math.Abs(c.inside-5) > 0.1 {
		t.Errorf("%.2f%% and %.2f%%, want 25 of the process and 5 of the programs", c.percent, c.inside)
	}
}

// The metrics of an agent that has seen a recording keep to Prometheus's
// conventions, and agree with the interface.
func TestMetrics(t *testing.T) {
	require.BPF(t)
	a := require.Value(New(Options{
		Version: "v", Host: "h", Proc: "/proc", CgroupRoot: require.CgroupV2(t),
		Capture: bpf.Options{RingBytes: 1 << 20}, Sampling: Sampling{OneIn: 1}, Locality: counts.DefaultLocalityOptions,
	}))(t)
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	a.observer = observe.New(observe.Options{Locality: counts.DefaultLocalityOptions})
	watch(t, a.observer)
	rec := httptest.NewRecorder()
	a.Handler(false).ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	body := rec.Body.Bytes()
	problems := require.Value(promlint.New(bytes.NewReader(body)).Lint())(t)
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "psidecar_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for _, want := range []string{
		`psidecar_key_accesses_total{job="127.0.0.1:8000",kind="pull",worker="worker0"} 3167`,
		`psidecar_requests_total{job="127.0.0.1:8000",worker="worker1"} 30`,
		`psidecar_exact{job="127.0.0.1:8000"} 1`,
		`psidecar_request_duration_seconds_count{job="127.0.0.1:8000"} 60`,
		`psidecar_capture_events_total{class="lost",reason="ring_full"} 0`,
		`psidecar_build_info{version="v"} 1`,
	} {
		if !strings.Contains(string(body), want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
	if a.Ready() == nil {
		t.Error("nothing is watched, and it says it is ready")
	}
	j := a.Jobs()[0]
	if j.Accesses != 6334+6540 || j.Latency.Count != 60 || len(j.Nodes) != 5 {
		t.Errorf("%+v", j)
	}
	during := require.Value(a.Heatmap(j.Name, page.HeatmapQuery{
		Blocks: 4, Last: 1<<64 - 1, Measure: page.Accesses, Range: page.Range{From: j.FirstSeen, To: j.LastSeen},
	}))(t)
	sum := uint64(0)
	for _, row := range during.Counts {
		for _, n := range row {
			sum += n
		}
	}
	if sum != j.Accesses || len(during.Blocks) > 4 || len(during.Blocks) < 2 {
		t.Errorf("%d accesses in %d blocks from first to last, want %d in 2 to 4", sum, len(during.Blocks), j.Accesses)
	}
}
