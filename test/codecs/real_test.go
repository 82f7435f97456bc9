package codecs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/hosts"
	"github.com/psidecar/psidecar/test/hosts/hoststest"
	"github.com/psidecar/psidecar/test/job"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// mostLost is how many points of accuracy a threshold of 0.99 may cost.
const mostLost = 0.005

// A program of somebody else's on the real PS-lite (MXNet's habits, dist-lr's), which
// PSIDECAR_TRAIN names with its arguments and which says "accuracy 0.93" on one of its
// workers, trains as well under a threshold as without a sidecar, on two hosts to
// four. Its own settings are in the environment.
func TestRealPrograms(t *testing.T) {
	program := job.Program(strings.Fields(require.Asked(t, "PSIDECAR_TRAIN", "a program on PS-lite that trains, with its arguments")))
	for n := 2; n <= 4; n += 2 {
		t.Run(fmt.Sprintf("%d hosts", n), func(t *testing.T) {
			want, _ := trains(t, program, n)
			got, counts := trains(t, program, n, "--threshold", "0.99")
			t.Logf("accuracy %.4f directly, %.4f under a threshold of 0.99; %v", want, got, counts)
			if got < want-mostLost {
				t.Errorf("under the threshold the accuracy is %.4f, without %.4f", got, want)
			}
			if len(counts) == 0 {
				t.Error("nothing went under the threshold")
			}
		})
	}
}

var accuracy = regexp.MustCompile(`accuracy ([0-9.]+)`)

// trains runs the program on hosts with sidecars of these flags, without any where
// there are none, and returns the accuracy and how many bytes pushes took.
func trains(t *testing.T, program job.Program, n int, flags ...string) (best float64, forms []string) {
	t.Helper()
	net := hoststest.New(t, hosts.Config{Hosts: n})
	var sidecars []*sidecar.Sidecar
	for _, h := range net.Hosts() {
		if len(flags) > 0 {
			sidecars = append(sidecars, sidecar.Start(t, h, build(t, "cmd/psidecar"), "sidecar", append([]string{"--state-dir", t.TempDir()}, flags...)...))
		}
	}
	running, err := job.Job{Scheduler: program, Servers: job.Repeat(n, program), Workers: job.Repeat(n, program), Hosts: net.Hosts()}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range running.Workers {
		if m := accuracy.FindStringSubmatch(w.Stdout.String()); m != nil {
			if best, err = strconv.ParseFloat(m[1], 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	if best == 0 {
		t.Fatal("no worker said what the accuracy is")
	}
	reasons := map[values.Reason]uint64{}
	for _, s := range sidecars {
		state, err := s.Connections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range state.Values.Forms {
			if f.Form == "threshold" {
				forms = append(forms, fmt.Sprintf("%d of %d bytes", f.Encoded, f.Bytes))
			}
		}
		for r, n := range state.Values.Reasons {
			reasons[r] += n
		}
		s.Stop(t)
	}
	if len(sidecars) > 0 {
		t.Logf("counted: %v", reasons)
	}
	return best, forms
}
