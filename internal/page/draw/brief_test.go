package draw

import (
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// A job has one line, and below it only what is wrong.
func TestBrief(t *testing.T) {
	at := time.Unix(0, 0)
	history := func(saved ...float64) (h page.History) {
		for i, s := range saved {
			left := 2e6
			h.Points = append(h.Points, page.HistoryPoint{From: at.Add(time.Duration(i) * time.Second), To: at.Add(time.Duration(i+1) * time.Second),
				StepsPerSecond: 10 + s/1e5, LeftHostPerSecond: &left, SavedPerSecond: &s})
		}
		return h
	}
	direct := []measure.Gap{{Reason: "no_proxy", Why: "no proxy there", Do: "start it"}}
	r := Status{Agent: page.Agent{Host: "a", Adoption: &page.Adoption{Past: map[string]int{page.FastLink: 4, "busy": 1}}, Hosts: []page.Host{{Host: "a"}, {Host: "b", Lost: []page.Counter{{Reason: "ring_full", Events: 2, Help: "raise --ring-size"}, {Reason: "untimed", Events: 3}}}}}, Jobs: []page.Job{
		{Name: "10.0.0.1:9000", Called: "news", State: page.Running, Servers: 2, Workers: 2, StepsPerSecond: 20, Measures: []measure.Line{
			{Measure: measure.Observe, State: measure.On}, {Measure: measure.Compact, State: measure.On, Setting: "--codec auto"}, {Measure: measure.Wire, State: measure.On, Setting: "--wire bf16"},
			{Measure: measure.Threshold, State: measure.Off, Setting: "0.99", Not: []measure.Gap{{Reason: "fork", Connections: 2, Why: "not gradients", Do: "see x"}}},
			{Measure: measure.Slim, State: measure.Off, Not: []measure.Gap{{Reason: measure.NotSet, Why: "not set", Do: "set it"}}},
		}},
		{Name: "10.0.0.2:9000", Called: "ads", State: page.Stalled, What: "worker1 waits for server0"},
		{Name: "10.0.0.3:9000", Called: "videos", State: page.Running, Measures: []measure.Line{
			{Measure: measure.Carry, State: measure.Off, Not: direct}, {Measure: measure.Compact, State: measure.Off, Setting: "--codec auto", Not: direct},
			{Measure: measure.Threshold, State: measure.Off, Setting: "--threshold 0.99", Not: direct},
			{Measure: measure.Unchanged, State: measure.Part, Setting: "--unchanged", Not: []measure.Gap{{Reason: "same_host", Connections: 2, Why: "within this host"}}},
		}},
	}}
	var out strings.Builder
	r.Brief(&out, map[string]page.History{"10.0.0.1:9000": history(0, 0, 0, 1e6, 1e6, 1e6)})
	_, text, _ := strings.Cut(out.String(), "\n")
	want := `  4 direct: the link is fast; taken in when it is the bottleneck
  b lost: ring_full, 2 times, 0 bytes: raise --ring-size
job ads at 10.0.0.2:9000: stalled, 0 servers, 0 workers, 0.0 steps/s
  worker1 waits for server0
job news at 10.0.0.1:9000: running, 2 servers, 2 workers, 20.0 steps/s; compact (--codec auto), wire bf16; 9.0 MB between hosts instead of 12.0 MB in the last hour; 2.0 times as fast as before that
  threshold: off (0.99)
    2 not: not gradients; see x
job videos at 10.0.0.3:9000: running, 0 servers, 0 workers, 0.0 steps/s; unchanged
  carry: off
    no proxy there; start it
  threshold: off (--threshold 0.99)
    no proxy there; start it
`
	if text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	for _, c := range []struct {
		saved []float64
		want  float64
	}{{[]float64{0, 0, 0}, 0}, {[]float64{1e6, 1e6, 1e6}, 0}, {[]float64{0, 0, 0, 1e6, 1e6, 1e6, 0}, 2}} {
		if got := faster(history(c.saved...)); got != c.want {
			t.Errorf("saved %v: %v times as fast, want %v", c.saved, got, c.want)
		}
	}
}
