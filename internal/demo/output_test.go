package demo

import (
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/cli"
)

// Each row has the cores that the job and psidecar kept busy, that of the job at
// home too.
func TestRows(t *testing.T) {
	var out strings.Builder
	d := Output{Stdout: &out, live: cli.NewLiveLine(nil, &out)}
	loss := 0.5
	for _, r := range []Result{
		{Phase: "baseline", StepsPerSecond: 10, BytesPerStep: 2000, MaxHostBytes: 1000, Loss: &loss, Accuracy: &loss, JobCPU: 6, Seconds: 4},
		{Phase: "reroute", StepsPerSecond: 9, JobCPU: 2, PsidecarCPU: 1, Seconds: 4, Home: &Result{JobCPU: 3, PsidecarCPU: 0.5, Seconds: 2}},
	} {
		if err := d.report(r); err != nil {
			t.Fatal(err)
		}
	}
	want := `phase       steps/s   kB per step   busiest host's kB     loss  accuracy  cores job / psidecar
baseline       10.0           2.0                 1.0   0.5000    50.00%           1.50 / 0.00
           another job, whose hot keys wander; first with all keys at home:
at home         0.0           0.0                 0.0        -         -           1.50 / 0.25
reroute         9.0           0.0                 0.0        -         -           0.50 / 0.25
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// The sentences at the end say what was measured, also where it is no gain.
func TestVerdict(t *testing.T) {
	accuracy, less := 0.9899, 0.9893
	results := []Result{
		{Phase: "baseline", StepsPerSecond: 45.1, BytesPerStep: 520e3, Accuracy: &accuracy},
		{Phase: "compact", StepsPerSecond: 68.4, BytesPerStep: 143e3, Accuracy: &accuracy},
		{Phase: "reroute", StepsPerSecond: 24.6, BytesPerStep: 50e3, Home: &Result{StepsPerSecond: 24.6, BytesPerStep: 46e3}},
		{Phase: "threshold", StepsPerSecond: 30, BytesPerStep: 59e3, Accuracy: &less},
	}
	want := []string{
		"Without loss psidecar sent 3.6 times fewer bytes and made the job 1.5 times as fast.",
		"Moving keys to their users, psidecar sent 1.09 times as many bytes and made the job 1.0 times as fast, compared with the same job with all keys at home.",
		"With data and keys placed, and 99% of pushed values held back until they add up, psidecar sent 8.8 times fewer bytes and made the job 0.67 times as fast, which is slower; accuracy 98.93% instead of 98.99%.",
		"If it is slower: all hosts and their proxies share this machine's 2 cores; psidecar gains time where the network is the bottleneck.",
	}
	if got := Verdict(results, 2); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := Verdict(results[:2], 2); len(got) != 1 {
		t.Errorf("of a job that is faster: %q", got)
	}
}
