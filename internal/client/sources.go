package client

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"

	"github.com/psidecar/psidecar/bpf"
)

// BundleSources are all files of a bundle: version, as JSON, what this host lacks, and what
// agent, proxy and planner answer at their URLs; empty: that part is not asked.
func BundleSources(version any, agent, proxy, planner string) []BundleSource {
	sources := []BundleSource{
		{Name: "version.json", Read: func(context.Context) ([]byte, error) { return json.MarshalIndent(version, "", "  ") }},
		{Name: "doctor.json", Read: func(context.Context) ([]byte, error) {
			facts, err := bpf.GatherFacts()
			if err != nil {
				return nil, err
			}
			return json.MarshalIndent(bpf.NewProbeReport(facts), "", "  ")
		}},
	}
	if runtime.GOOS == "linux" {
		for _, path := range []string{"/proc/version", "/proc/self/mounts", "/proc/meminfo", "/proc/loadavg", "/proc/net/sockstat"} {
			sources = append(sources, BundleSource{Name: "host/" + filepath.Base(path), Read: func(context.Context) ([]byte, error) { return os.ReadFile(path) }})
		}
	}
	for _, s := range []struct {
		part, url string
		paths     []string
	}{
		{"agent", agent, []string{"/api/v1/agent", "/api/v1/jobs", "/api/v1/traffic", "/api/v1/servers", "/api/v1/keys", "/metrics"}},
		{"proxy", proxy, []string{"/api/v1/connections", "/metrics"}},
		{"planner", planner, []string{"/api/v1/agent", "/api/v1/jobs", "/metrics"}},
	} {
		if s.url == "" {
			continue
		}
		for _, path := range s.paths {
			name := filepath.Base(path) + ".json"
			if path == "/metrics" {
				name = "metrics.txt"
			}
			source := URLSource(s.part+"/"+name, s.url, path)
			if path == "/api/v1/jobs" {
				source = source.Without("command") // which agents of older versions tell: arguments hold secrets
			}
			sources = append(sources, source)
		}
	}
	if agent != "" { // with --pprof
		for _, profile := range []string{"goroutine", "heap"} {
			sources = append(sources, URLSource("agent/"+profile+".txt", agent, "/debug/pprof/"+profile+"?debug=1"))
		}
	}
	return sources
}
