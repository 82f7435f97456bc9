package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/planner/simulate"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/traces"
)

// record writes a trace to a file.
func writeTrace(t *testing.T, uses traces.Trace) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.psr")
	f := require.Value(os.Create(path))(t)
	defer f.Close()
	w := require.Value(recording.NewWriter(f, recording.Header{Host: "trace"}))(t)
	require.NoError(t, uses(w.Add))
	require.Value(w.Close(0, 0))(t)
	return path
}

// Where favourites wander, moving keys after them leaves the busiest machine a
// third of what it has at home, moves included, and no other strategy less.
func TestSimulateWandering(t *testing.T) {
	uses := require.Value(traces.Wandering{Workers: 8, Servers: 8, Steps: 600, Width: 1, Seed: 1,
		Count: train.CountOptions{Keys: 100_000, Batch: 100, Favourites: 500, Common: 0.1, Skew: 1, Wander: 200}}.Trace())(t)
	path := writeTrace(t, uses)
	code, stdout, stderr := runTest(t, nil, "simulate", path, "--json")
	if code != 0 {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	var r simulate.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	busiest := map[string]float64{}
	for _, s := range r.Results {
		busiest[s.Strategy] = s.Sum.Busiest
	}
	for name, bytes := range busiest {
		if name != "locality" && bytes <= busiest["locality"] {
			t.Errorf("%s leaves the busiest machine %.0f bytes, locality %.0f", name, bytes, busiest["locality"])
		}
	}
	if busiest["home"] < 3*busiest["locality"] {
		t.Errorf("locality leaves %.0f bytes of %.0f", busiest["locality"], busiest["home"])
	}
	code, stdout, _ = runTest(t, nil, "simulate", path, "--strategies", "home,locality", "--epoch-steps", "50")
	if code != 0 || !strings.Contains(stdout, "x below home") || strings.Contains(stdout, "reactive") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
}

func TestSimulateBadUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"want at least one recording": {},
		"no strategy":                 {"x", "--strategies", "best"},
		"must be above 0":             {"x", "--epoch-steps", "0"},
		"no such file":                {"/no/such/file"},
		"invalid argument \"a\"":      {"x", "--horizon", "a"},
	} {
		code, _, stderr := runTest(t, nil, append([]string{"simulate"}, args...)...)
		if want := map[bool]int{true: 1, false: 2}[want == "no such file"]; code != want {
			t.Errorf("%v: exit code %d, want %d", args, code, want)
		}
		if !strings.Contains(stderr, want) {
			t.Errorf("%v: %q, want %q", args, stderr, want)
		}
	}
}
