package daemon

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/internal/cli"
)

// TestExportSettings: nothing is exported unless it is asked for; what cannot be is used
// wrongly; otherwise the agent is to tell of requests as slow as the flag says.
func TestExportSettings(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	const collector = "http://127.0.0.1:4317"
	for _, tc := range []struct {
		name, endpoint, variable string
		slow                     time.Duration
		on                       bool
		wrong                    string
	}{
		{"by default", "", "", 100 * time.Millisecond, false, ""},
		{"by the flag", collector, "", time.Second, true, ""},
		{"by the environment", "", collector, time.Second, true, ""},
		{"rubbish", "collector", "", time.Second, false, "--otlp-endpoint"},
		{"all requests", collector, "", 0, false, "--otlp-slow"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", tc.variable)
			var opts agent.Options
			f := ExportSettings{tc.endpoint, tc.slow}
			e, err := f.Open(&opts)
			if tc.wrong != "" {
				var usage cli.UsageError
				if !errors.As(err, &usage) || !strings.Contains(err.Error(), tc.wrong) {
					t.Errorf("%v, want %q", err, tc.wrong)
				}
				return
			}
			if err != nil || (e != nil) != tc.on || (opts.Slow != nil) != tc.on || len(opts.Collectors) > 0 != tc.on {
				t.Fatalf("%v, %v, %+v", e, err, opts)
			}
			if tc.on {
				opts.Slow(netip.AddrPort{}, counts.Slow{})
				if opts.Locality.SlowAfter != tc.slow {
					t.Errorf("slow is %v, want %v", opts.Locality.SlowAfter, tc.slow)
				}
			}
		})
	}
}
