package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/test/require"
)

// checkedPart answers as a part of psidecar does to psidecar check.
type checkedPart struct {
	stuck, unready atomic.Bool
	unreadyFor     atomic.Int32 // questions
	planner        string       // JSON
}

func (p *checkedPart) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/healthz" && p.stuck.Load():
		http.Error(w, "stuck: reading has been stuck for 9s (limit 5s)", http.StatusServiceUnavailable)
	case r.URL.Path == "/readyz" && (p.unready.Load() || p.unreadyFor.Add(-1) >= 0):
		http.Error(w, "programs are not attached", http.StatusServiceUnavailable)
	case r.URL.Path == "/api/v1/agent":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"host": "node-1", "planner": %s}`, p.planner)
	default:
		fmt.Fprintln(w, "ok")
	}
}

func servePart(t *testing.T, p *checkedPart) (address string) {
	t.Helper()
	if p.planner == "" {
		p.planner = `{"address": "planner:9811", "connected": true}`
	}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// TestCheck: what works is ok; what stands still, is not ready, has no planner or
// does not answer is named, with why, and the exit code says so.
func TestCheck(t *testing.T) {
	stuck, unready := &checkedPart{}, &checkedPart{}
	stuck.stuck.Store(true)
	unready.unready.Store(true)
	well := servePart(t, &checkedPart{})
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"all well", []string{"--agents", well, "--proxies", well, "--planners", well}, 0, "ok     planner " + well},
		{"an agent without a planner", []string{"--agents", servePart(t, &checkedPart{planner: "null"})}, 0, "ok     agent"},
		{"a loop is stuck", []string{"--proxies", well + "," + servePart(t, stuck)}, 1, "stuck: reading has been stuck for 9s"},
		{"not ready", []string{"--agents", servePart(t, unready)}, 1, "programs are not attached"},
		{"not connected", []string{"--agents", servePart(t, &checkedPart{planner: `{"address": "planner:9811", "error": "no certificate"}`})}, 1, "the planner at planner:9811 does not take its reports: no certificate"},
		{"nobody", []string{"--planners", "127.0.0.1:1"}, 1, "FAILED planner 127.0.0.1:1"},
		{"no such name", []string{"--planners", "nobody.invalid:9812"}, 1, "FAILED planner nobody.invalid:9812"},
		{"nothing", nil, 2, "nothing to check"},
		{"no port", []string{"--agents", "127.0.0.1"}, 2, `"127.0.0.1": want HOST:PORT, of the part agent`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, stderr := runTest(t, nil, append([]string{"check"}, tc.args...)...)
			if code != tc.code || !strings.Contains(out+stderr, tc.want) {
				t.Errorf("exit code %d, want %d with %q; stdout %s, stderr %s", code, tc.code, tc.want, out, stderr)
			}
		})
	}
}

// TestCheckNames: a name is asked at its addresses.
func TestCheckNames(t *testing.T) {
	well := servePart(t, &checkedPart{})
	_, port, err := net.SplitHostPort(well)
	require.NoError(t, err)
	_, out, stderr := runTest(t, nil, "check", "--planners", "localhost:"+port) // which may have ::1 too, where nobody listens
	if !strings.Contains(out, "ok     planner "+well) {
		t.Errorf("stdout %s, stderr %s", out, stderr)
	}
}

// TestCheckJSON: every address is told, by part.
func TestCheckJSON(t *testing.T) {
	well := servePart(t, &checkedPart{})
	code, out, stderr := runTest(t, nil, "check", "--json", "--agents", well, "--proxies", "127.0.0.1:1")
	var report struct {
		OK    bool
		Parts []client.Checked
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s %s", err, out, stderr)
	}
	if code != 1 || report.OK || len(report.Parts) != 2 || !report.Parts[0].OK || report.Parts[1].OK || report.Parts[1].Problem == "" {
		t.Errorf("exit code %d, %+v", code, report)
	}
}

// TestCheckWaits: with patience a part that becomes ready is asked again.
func TestCheckWaits(t *testing.T) {
	late := &checkedPart{}
	late.unreadyFor.Store(2)
	if code, out, stderr := runTest(t, nil, "check", "--agents", servePart(t, late), "--patience", "10m"); code != 0 {
		t.Errorf("exit code %d: %s %s", code, out, stderr)
	}
}
