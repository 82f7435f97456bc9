package draw

import (
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/require"
)

func screen() *Screen {
	at := time.Unix(1_700_000_000, 0)
	s := &Screen{At: at, Shown: "10.0.0.2:9000", Agent: page.Agent{Host: "planner-0", Version: "v1", Hosts: []page.Host{
		{Host: "host-0", CPUPercent: 1, Reported: at.Add(-2 * time.Second)}, {Host: "host-1", CPUPercent: 5, Reported: at, Lost: []page.Counter{{Reason: "ring_full"}}},
	}}}
	s.Jobs = []page.Job{
		{Name: "10.0.0.1:9000", State: page.Running, Workers: 2, Servers: 1, StepsPerSecond: 12.5, BytesPerSecond: 3e6, Bytes: 100, LeftHostBytes: 50, Latency: page.Latency{Count: 1, P50: 0.0004, P99: 0.0031}},
		{Name: "10.0.0.2:9000", State: page.Stalled, What: "stalled for 12 s: worker3 waits for server1",
			Stalls: []page.Stall{{Kind: "unanswered", Text: "worker3 waits for server1", Seconds: 12}, {Kind: "barrier", Text: "worker2 waits at a barrier", Seconds: 11}}},
	}
	s.Servers = page.Servers{Servers: []page.ServerLoad{{Name: "server0", Share: 0.25}, {Name: "server1", Share: 0.75}}, Workers: []page.WorkerLoad{{Name: "worker0", StepsPerSecond: 9}, {Name: "worker3", StepsPerSecond: 1, Straggler: true}}}
	for i := range 100 {
		s.History.Points = append(s.History.Points, page.HistoryPoint{From: at.Add(time.Duration(i-100) * 5 * time.Second), To: at.Add(time.Duration(i-99) * 5 * time.Second), StepsPerSecond: float64(i)})
	}
	return s
}

func TestTop(t *testing.T) {
	var out strings.Builder
	require.NoError(t, Top(&out, screen(), 120, NoColours))
	text := out.String()
	for _, want := range []string{
		"planner on planner-0, 2 hosts report", "  10.0.0.1:9000  running  2        1        12.5     3.0   50%", "> 10.0.0.2:9000  stalled",
		"stalled for 12 s: worker3 waits for server1\n", "for 11 s: worker2 waits at a barrier", "the last 8m20s\nsteps/s  ≤ 99.0 ", "█\n",
		"server   share  ", "server1  75%    ###############", "worker3  1.0      lags", "host-1  5.0% + 0.0%  0    0s ago    ring_full",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, "  for 12 s: worker3") || strings.Contains(text, "\x1b") {
		t.Errorf("it says a stall twice, or has colours:\n%s", text)
	}
	if strings.Index(text, "server1") > strings.LastIndex(text, "server0") || strings.LastIndex(text, "worker3") > strings.Index(text, "worker0") {
		t.Errorf("the busiest server and the slowest worker do not come first:\n%s", text)
	}
}

// Lines are cut to the width, and without a job it says so.
func TestTopFits(t *testing.T) {
	for _, width := range []int{20, 40, 200} {
		var out strings.Builder
		require.NoError(t, Top(&out, screen(), width, NoColours))
		for l := range strings.Lines(out.String()) {
			if n := len([]rune(strings.TrimSuffix(l, "\n"))); n > width {
				t.Errorf("%d columns instead of %d: %q", n, width, l)
			}
		}
	}
	var out strings.Builder
	if err := Top(&out, &Screen{Trouble: "nobody answers"}, 80, TrueColour); err != nil || !strings.Contains(out.String(), "no PS-lite job") || !strings.Contains(out.String(), "nobody answers") {
		t.Errorf("without a job: %q, %v", out.String(), err)
	}
}

func TestSpark(t *testing.T) {
	for _, tc := range []struct {
		figures []float64
		width   int
		want    string
	}{{[]float64{0, 1, 8}, 10, " ▂█"}, {[]float64{8, 8, 4}, 2, "█▅"}, {nil, 5, ""}, {[]float64{0, 0}, 5, "  "}, {[]float64{1}, -3, ""}} {
		if got := Spark(tc.figures, tc.width); got != tc.want {
			t.Errorf("%v in %d: %q, want %q", tc.figures, tc.width, got, tc.want)
		}
	}
}

func TestReporting(t *testing.T) {
	for n, want := range map[int]string{0: "0 hosts report", 1: "1 host reports", 2: "2 hosts report"} {
		if got := Reporting(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
