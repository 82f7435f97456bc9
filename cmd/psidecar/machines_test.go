package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/page"
)

// A run's machines are as the planner says: given by flags they come to the same
// assignment, and another than machines that are alike.
func TestPartitionAsksThePlanner(t *testing.T) {
	planner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/agent" {
			http.NotFound(w, r)
			return
		}
		json.NewEncoder(w).Encode(page.Agent{Hosts: []page.Host{
			{Host: "a", Machine: &page.Machine{LinkMbit: 1000, Cores: 2}}, {Host: "b", Machine: &page.Machine{LinkMbit: 4000, Cores: 6}}, {Host: "c"},
		}})
	}))
	defer planner.Close()
	data := topicData(t, 80, 4)
	divide := func(args ...string) (report string) {
		t.Helper()
		out := filepath.Join(t.TempDir(), "parts")
		code, stdout, stderr := runTest(t, nil, append([]string{"partition", "--input", data, "-k", "2", "--algorithm", "dppa", "--out", out, "--json"}, args...)...)
		if code != 0 {
			t.Fatalf("exit code %d, %s", code, stderr)
		}
		var r map[string]any
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		for name := range r {
			if strings.Contains(name, "seconds") || name == "cost" {
				delete(r, name)
			}
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	asked := divide("--planner-http", planner.URL, "--hosts", "b,a")
	if said := divide("--link-speed", "4000,1000", "--capacity", "6,2"); asked != said {
		t.Errorf("as the planner says: %s\nby flags: %s", asked, said)
	}
	if alike := divide(); asked == alike {
		t.Errorf("as if all were alike: %s", alike)
	}
	if mixed := divide("--planner-http", planner.URL, "--hosts", "b,a", "--capacity", "1,1"); mixed != divide("--link-speed", "4000,1000", "--capacity", "1,1") {
		t.Errorf("--capacity does not win: %s", mixed)
	}
	for want, args := range map[string][]string{
		"knows 3 hosts":        {"--planner-http", planner.URL},
		`no host "d"`:          {"--planner-http", planner.URL, "--hosts", "a,d"},
		"needs --planner-http": {"--hosts", "a,b"},
		"404":                  {"--planner-http", planner.URL + "/nothing", "--hosts", "a,b"},
	} {
		code, _, stderr := runTest(t, nil, slices.Concat([]string{"partition", "--input", data, "-k", "2"}, args)...)
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, %q, want %q", args, code, stderr, want)
		}
	}
}
