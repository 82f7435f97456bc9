package plans

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// The metrics say what a plan of which a part was refused came to.
func TestMetrics(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true})
	first := propose(t, s, 4, target(10, 10, 3), target(20, 29, 2))
	p := &proxy{t: t, client: client(t, s), refuse: map[uint64]bool{20: true}}
	p.work(isDone(first))
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.Metrics())
	families := require.Value(registry.Gather())(t)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{
		"psidecar_planner_displaced_keys " + testJob:            1,
		"psidecar_planner_epoch " + testJob:                     1,
		"psidecar_planner_foreign_reports_total":                0,
		"psidecar_planner_moved_bytes " + testJob:               0,
		"psidecar_planner_moved_keys " + testJob:                1,
		"psidecar_planner_pending_keys " + testJob:              0,
		"psidecar_planner_refused_keys " + testJob + " handler": 10,
		"psidecar_planner_store_lost " + testJob:                0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
