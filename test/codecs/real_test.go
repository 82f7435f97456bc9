package codecs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/hoststest"
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
	program := hosts.Program(strings.Fields(require.Asked(t, "PSIDECAR_TRAIN", "a program on PS-lite that trains, with its arguments")))
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

// BytePS's own benchmark, which BYTEPS_BIN names the folder of, pushes and pulls its
// keys under a threshold as often as it was asked to, its values taken for float32.
func TestBytePSBenchmark(t *testing.T) {
	dir := require.Asked(t, "BYTEPS_BIN", "the folder of BytePS's own benchmark")
	program := hosts.Program{filepath.Join(dir, "test_benchmark"), "1024000", "20", "0"} // length, repetitions, push then pull
	net := hoststest.New(t, hosts.Config{Hosts: 2})
	var sidecars []*sidecar.Sidecar
	for _, h := range net.Hosts() {
		sidecars = append(sidecars, sidecar.Start(t, h, build(t, "cmd/psidecar"), "sidecar",
			"--state-dir", t.TempDir(), "--threshold", "0.99", "--threshold-unpulled", "--char-values", "float32")) // it pulls after all pushes
	}
	if _, err := (hosts.Job{Scheduler: program, Servers: hosts.Repeat(2, program), Workers: hosts.Repeat(2, program), Hosts: net.Hosts(),
		Env: []string{"DMLC_ENABLE_RDMA=zmq", "BYTEPS_ENABLE_IPC=0", "NUM_KEY_PER_SERVER=4", "DMLC_GROUP_SIZE=1", "SKIP_DEV_ID_CHECK=1"}}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	layers := uint64(0)
	for _, s := range sidecars {
		state := require.Value(s.Connections(t.Context()))(t)
		t.Logf("%+v, counted: %v", state.Values.Forms, state.Values.Reasons)
		for _, f := range state.Values.Forms {
			if f.Form == "threshold" {
				layers += f.Layers
			}
		}
		s.Stop(t)
	}
	if layers < 20 {
		t.Errorf("%d layers went under the threshold", layers)
	}
}

var accuracy = regexp.MustCompile(`accuracy:? ([0-9.]+)`)

// trains runs the program on hosts with sidecars of these flags, without any where
// there are none, and returns the accuracy and how many bytes pushes took.
func trains(t *testing.T, program hosts.Program, n int, flags ...string) (best float64, forms []string) {
	t.Helper()
	net := hoststest.New(t, hosts.Config{Hosts: n})
	var sidecars []*sidecar.Sidecar
	for _, h := range net.Hosts() {
		if len(flags) > 0 {
			sidecars = append(sidecars, sidecar.Start(t, h, build(t, "cmd/psidecar"), "sidecar", append([]string{"--state-dir", t.TempDir()}, flags...)...))
		}
	}
	running, err := hosts.Job{Scheduler: program, Servers: hosts.Repeat(n, program), Workers: hosts.Repeat(n, program), Hosts: net.Hosts()}.Run(t.Context())
	require.NoError(t, err)
	for _, w := range running.Workers {
		if m := accuracy.FindStringSubmatch(w.Stdout.String()); m != nil {
			best = require.Value(strconv.ParseFloat(m[1], 64))(t)
		}
	}
	if best == 0 {
		t.Fatal("no worker said what the accuracy is")
	}
	reasons := map[values.Reason]uint64{}
	for _, s := range sidecars {
		state := require.Value(s.Connections(t.Context()))(t)
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
