package demo

import (
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
		{Phase: "reroute", StepsPerSecond: 9, JobCPU: 2, PsidecarCPU: 1, Seconds: 4, Home: &Result{StepsPerSecond: 6, JobCPU: 3, PsidecarCPU: 0.5, Seconds: 2}},
	} {
		if err := d.report(r); err != nil {
			t.Fatal(err)
		}
	}
	want := `phase      steps/s  kB/step  busiest host    loss  accuracy  cores job+ours  times as fast
baseline      10.0      2.0        1.0 kB  0.5000    50.00%     1.50 + 0.00  ████ 1.0
           another job, whose hot keys wander; first with all keys at home:
at home        6.0      0.0        0.0 kB       -         -     1.50 + 0.25  ████ 1.0
reroute        9.0      0.0        0.0 kB       -         -     0.50 + 0.25  ██████ 1.5
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// The sentence at the end says what was measured, also where it is no gain.
func TestVerdict(t *testing.T) {
	accuracy, less := 0.9899, 0.9893
	results := []Result{
		{Phase: "baseline", StepsPerSecond: 45.1, BytesPerStep: 520e3, Accuracy: &accuracy},
		{Phase: "placement", StepsPerSecond: 68.4, BytesPerStep: 143e3, Accuracy: &accuracy},
		{Phase: "threshold", StepsPerSecond: 30, BytesPerStep: 59e3, Accuracy: &less},
	}
	const lossless = "Without loss psidecar made the job 1.5 times as fast with 3.6 times fewer bytes"
	for n, want := range map[int]string{
		1: "", 2: lossless + ".",
		3: lossless + "; with 99% of pushed values held back until they add up, 0.67 times as fast, which is slower, with 8.8 times fewer bytes, accuracy 98.93% instead of 98.99%.",
	} {
		if got := Verdict(results[:n]); got != want {
			t.Errorf("of %d phases: got\n%s\nwant\n%s", n, got, want)
		}
	}
}

// What a link stands for is computed from the cores that a host has, one at most.
func TestLinkText(t *testing.T) {
	for _, c := range []struct {
		cores, hosts int
		want         string
	}{
		{2, 4, "A host has 0.5 of a core (2 cores, 4 hosts) and a link of 10 Mbit/s: 20 Mbit/s a core, as a host of 32 cores has with 640 Mbit/s."},
		{64, 4, "A host has 1 of a core (64 cores, 4 hosts) and a link of 20 Mbit/s: 20 Mbit/s a core, as a host of 32 cores has with 640 Mbit/s."},
	} {
		o := Options{Hosts: c.hosts, Rate: LinkMbit(c.cores, c.hosts) * 1e6}
		if got := o.LinkText(c.cores); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
