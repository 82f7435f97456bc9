package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// fakeAgent answers as an agent does.
func fakeAgent(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/heatmap", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("job") == "none" {
			w.WriteHeader(http.StatusNotFound)
			w.Write([]byte(`{"error":"no such job: \"none\""}`))
			return
		}
		rows := `"workers":["worker0","worker1"]`
		if r.URL.Query().Get("by") == "time" && r.URL.Query().Get("rows") == "9" && r.URL.Query().Get("workers") == "worker0,worker1" {
			rows = `"workers":[],"times":[{"from":"2026-01-02T03:04:05Z","to":"2026-01-02T03:04:15Z"},{"from":"2026-01-02T03:04:15Z","to":"2026-01-02T03:04:25Z"}]`
		}
		w.Write([]byte(`{"job":"h:1",` + rows + `,"blocks":[{"first":0,"last":9,"first_text":"0","last_text":"9"},` +
			`{"first":10,"last":18446744073709551615,"first_text":"10","last_text":"18446744073709551615"}],` +
			`"counts":[[5,0],[0,7]],"measure":"` + r.URL.Query().Get("measure") + `","exact":true}`))
	})
	mux.HandleFunc("/api/v1/jobs", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"jobs":[{"job":"h:1","dialect":"dmlc","nodes":[{"name":"worker0","address":"a:1"}],"stragglers":["worker1"]}]}`))
	})
	mux.HandleFunc("/api/v1/names", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"names":[{"name":"users","first":0,"last":9}]}`))
	})
	mux.HandleFunc("/api/v1/keys", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"job":"h:1","hottest":[{"key":3,"key_text":"3","name":"users[3]","accesses":12},{"key":77,"key_text":"77","accesses":5}]}`))
	})
	mux.HandleFunc("/api/v1/agent", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"host":"me","counters":[{"reason":"ring_full","class":"lost","events":3,"bytes":9,"help":"too slow"}]}`))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestHeatmap(t *testing.T) {
	agent := fakeAgent(t)
	code, out, stderr := runTest(t, nil, "heatmap", "--agent", agent, "--json")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var got struct {
		Job     string
		Workers []string
		Blocks  []struct{ First, Last uint64 }
		Counts  [][]uint64
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	if got.Job != "h:1" || len(got.Workers) != 2 || got.Blocks[1].Last != 1<<64-1 || got.Counts[1][1] != 7 {
		t.Errorf("%+v", got)
	}
	if code, out, _ := runTest(t, nil, "heatmap", "--agent", agent); code != 0 || !strings.Contains(out, "worker1  @") {
		t.Errorf("exit code %d: %q", code, out)
	}
	second := time.Date(2026, 1, 2, 3, 4, 15, 0, time.UTC).Local().Format(time.TimeOnly)
	if code, out, stderr := runTest(t, nil, "heatmap", "--agent", agent, "--by", "time", "--rows", "9", "--workers", "worker0,worker1"); code != 0 || !strings.Contains(out, " by time and key") || !strings.Contains(out, second+"  @") {
		t.Errorf("by time: exit code %d: %q %s", code, out, stderr)
	}
	for _, wrong := range [][]string{{"--by", "server"}, {"--rows", "3"}, {"--workers", "worker0"}} {
		if code, _, stderr := runTest(t, nil, append([]string{"heatmap", "--agent", agent}, wrong...)...); code != 2 {
			t.Errorf("%v: exit code %d: %s", wrong, code, stderr)
		}
	}
	picture := filepath.Join(t.TempDir(), "h.png")
	if code, out, stderr := runTest(t, nil, "heatmap", "--agent", agent, "--png", picture); code != 0 || out != "" {
		t.Errorf("exit code %d: %q %s", code, out, stderr)
	}
	if b, err := os.ReadFile(picture); err != nil || !strings.HasPrefix(string(b), "\x89PNG") {
		t.Errorf("the picture: %v", err)
	}
	if code, _, stderr := runTest(t, nil, "heatmap", "--agent", agent, "--job", "none"); code != 1 || !strings.Contains(stderr, "no such job") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, _, stderr := runTest(t, nil, "status", "--agent", "127.0.0.1:1"); code != 1 || !strings.Contains(stderr, "is it running") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestStatus(t *testing.T) {
	code, out, stderr := runTest(t, nil, "status", "--links", "--agent", fakeAgent(t))
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{"agent on me", "ring_full", "job h:1", "worker1 lags", "a:1"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in %s", want, out)
		}
	}
}

func TestWatchingUsage(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk")
	require.NoError(t, os.WriteFile(junk, []byte("this is no recording"), 0o600))
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"bad rate", []string{"agent", "--sample", "often"}, 2, "--sample"},
		{"bad budget", []string{"agent", "--cpu-budget", "-1"}, 2, "--cpu-budget"},
		{"little memory", []string{"agent", "--memory", "5"}, 2, "--memory"},
		{"bad address", []string{"agent", "--http", "256.0.0.1:x"}, 2, "--http"},
		{"nothing to do", []string{"record"}, 2, "--out"},
		{"both", []string{"record", "--out", "a", "--info", "b"}, 2, "exclude"},
		{"no recording", []string{"record", "--info", junk}, 1, "not a psidecar recording"},
		{"no file", []string{"record", "--info", filepath.Join(dir, "nope")}, 1, "nope"},
		{"planner's address", []string{"planner", "--listen", "nowhere"}, 2, "--listen"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, _, stderr := runTest(t, nil, tc.args...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d (want %d): %s", code, tc.code, stderr)
			}
		})
	}
}

// heatmap and status name keys: by a file of the user's, and as the agent does.
func TestNamedKeys(t *testing.T) {
	agent := fakeAgent(t)
	file := filepath.Join(t.TempDir(), "names.yaml")
	require.NoError(t, os.WriteFile(file, []byte("- {name: users, first: 0, last: 9, keys-per-row: 1}\n- {name: items, first: 10, last: 99, keys-per-row: 10}\n"), 0o600))
	if code, out, stderr := runTest(t, nil, "heatmap", "--agent", agent, "--names", file); code != 0 || !strings.Contains(out, "^ users[0..9]") || !strings.Contains(out, "^ items[0..8]") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	if code, _, stderr := runTest(t, nil, "heatmap", "--agent", agent, "--names", file+"x"); code != 1 || !strings.Contains(stderr, "--names") {
		t.Errorf("no file: exit code %d: %s", code, stderr)
	}
	if code, out, stderr := runTest(t, nil, "status", "--agent", agent); code != 0 || !strings.Contains(out, "hottest keys (uses): users[3] (12), key 77 (5)") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
}
