package simulate

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// second returns a key at home with the second of two servers.
func second(n uint64) uint64 { return math.MaxUint64/2 + n }

// write makes a recording of one host.
func write(t *testing.T, host string, uses ...recording.Use) string {
	t.Helper()
	var out bytes.Buffer
	w := require.Value(recording.NewWriter(&out, recording.Header{Host: host}))(t)
	for i := range uses {
		if uses[i].Job == "" {
			uses[i].Job = "j:1"
		}
		require.NoError(t, w.Add(&uses[i]))
	}
	require.Value(w.Close(0, 0))(t)
	path := filepath.Join(t.TempDir(), "r.psr")
	require.NoError(t, os.WriteFile(path, out.Bytes(), 0o600))
	return path
}

func defaults() RecordedOptions {
	return RecordedOptions{EpochSteps: 1, KeyBytes: 8, Strategies: []string{"home"}, Batches: 1, Horizon: 100}
}

// Two hosts, whose ranks lie crosswise: worker 0 is beside server 1.
func TestSeveralHosts(t *testing.T) {
	a := write(t, "a",
		recording.Use{Worker: "worker0", Server: "server0", UnixNanos: 1, Timestamp: 1, Pull: true, Keys: []uint64{5}},
		recording.Use{Worker: "worker0", Server: "server1", UnixNanos: 2, Timestamp: 1, Pull: true, Keys: []uint64{second(5)}},
		recording.Use{Worker: "worker0", Server: "server1", UnixNanos: 4, Timestamp: 1, Pull: true, Answer: true, Keys: []uint64{second(5)}, Bytes: 4},
		recording.Use{Worker: "worker0", Server: "server0", UnixNanos: 7, Timestamp: 2, Push: true, Keys: []uint64{5}, Bytes: 12},
	)
	b := write(t, "b",
		recording.Use{Worker: "worker0", Server: "server0", UnixNanos: 3, Timestamp: 1, Pull: true, Answer: true, Keys: []uint64{5}, Bytes: 12},
		recording.Use{Worker: "worker1", Server: "server0", UnixNanos: 5, Timestamp: 1, Pull: true, Keys: []uint64{5}},
		recording.Use{Job: "other:1", Worker: "worker1", Server: "server0", UnixNanos: 6, Timestamp: 1, Pull: true, Keys: []uint64{5}},
	)
	o := defaults()
	o.Job = "j:1"
	r := require.Value(RunRecorded([]string{b, a}, o))(t)
	// Remote: worker 0's pull of key 5 (16 + 12) and its push of it (8 + 12).
	if got := r.Results[0].Sum.Total; got != 48 {
		t.Errorf("%v bytes cross, want 48: %+v", got, r)
	}
	if r.Machines != 2 || r.Workers != 2 || r.Servers != 2 || r.Requests != 4 || r.Keys != 2 || !r.Complete {
		t.Errorf("the report is %+v", r)
	}
	// A pull and the push that follows are one step.
	if n := len(r.Results[0].Epochs); n != 1 {
		t.Errorf("%d epochs, want 1", n)
	}
}

func TestSteps(t *testing.T) {
	var c clock
	for i, tc := range []struct {
		timestamp  int32
		push, pull bool
		want       int
	}{
		{1, false, true, 0}, {1, false, true, 0}, {2, true, false, 0}, {2, true, false, 0},
		{3, false, true, 1}, {4, true, false, 1}, {5, true, false, 2}, {6, true, true, 3}, {7, true, true, 4}, {8, false, true, 5}, {9, false, true, 6},
		{8, false, true, 6}, // a straggler of the step before
	} {
		if got := c.step(&recording.Use{Timestamp: tc.timestamp, Push: tc.push, Pull: tc.pull}); got != tc.want {
			t.Errorf("request %d (%+v) is of step %d", i, tc, got)
		}
	}
}

// Values of different lengths.
func TestLens(t *testing.T) {
	path := write(t, "a", recording.Use{Worker: "worker1", Server: "server0", Timestamp: 1, Push: true,
		Keys: []uint64{1, 2, 3}, Bytes: 24, Lens: []int32{1, 2, 3}})
	o := defaults()
	o.Strategies = []string{"home", "reactive"}
	r := require.Value(RunRecorded([]string{path}, o))(t)
	if got := r.Results[0].Sum.Total; got != 3*8+4+8+12 {
		t.Errorf("%v bytes cross", got)
	}
}

func TestBadRecordings(t *testing.T) {
	use := recording.Use{Worker: "worker0", Server: "server0", Timestamp: 1, Push: true, Keys: []uint64{1}, Bytes: 4}
	other, nameless := use, use
	other.Job, nameless.Server = "k:1", "10.0.0.1:5"
	good := write(t, "a", use)
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("not a recording at all"), 0o600))
	for want, tc := range map[string]struct {
		paths []string
		job   string
	}{
		"select one with --job":    {[]string{write(t, "a", use, other)}, ""},
		"no request of job x:1":    {[]string{good}, "x:1"},
		"hold no request":          {[]string{write(t, "a")}, ""},
		"not by its rank":          {[]string{write(t, "a", nameless)}, ""},
		"not a psidecar recording": {[]string{good, text}, ""},
		"no such file":             {[]string{"/no/such"}, ""},
		"no answer of server 0 wa": {[]string{good, write(t, "b", use)}, ""},
	} {
		o := defaults()
		o.Job = tc.job
		if _, err := RunRecorded(tc.paths, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// One that was cut off is as good as it goes.
	whole := require.Value(os.ReadFile(write(t, "a", use, use, use)))(t)
	require.NoError(t, os.WriteFile(text, whole[:len(whole)-8], 0o600))
	if r, err := RunRecorded([]string{text}, defaults()); err != nil && !strings.Contains(err.Error(), "no request") || err == nil && r.Complete {
		t.Errorf("cut off: %+v, %v", r, err)
	}
}
