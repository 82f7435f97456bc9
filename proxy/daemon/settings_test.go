package daemon

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/test/require"
)

// Servers that assign would store zeros for what a threshold or slim leaves out of pushes.
func TestLeavingOutIsRefusedForServersThatAssign(t *testing.T) {
	for args, want := range map[string]string{
		"--threshold=0.99": "--threshold",
		"--slim=0.3,0.1":   "--slim",
		"--quantize=8":     "",
		"--unchanged":      "",
	} {
		for _, handler := range []string{"", "add", "assign"} {
			f := Settings{Codecs: []string{CompactCodec}, Share: ShareAuto, ShareLeast: shared.Fewest}
			f.Routing.Handler, f.Routing.Dir = handler, t.TempDir()
			set := pflag.NewFlagSet("", pflag.ContinueOnError)
			set.String("config", "", "")
			f.Values.Register(set)
			require.NoError(t, set.Parse([]string{args}))
			err := f.namedCodecs(new(proxy.Options))
			if want == "" || handler != "assign" {
				if err != nil {
					t.Errorf("%s, handler %q: %v", args, handler, err)
				}
				continue
			}
			var usage cli.UsageError
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--handler assign") {
				t.Errorf("%s: %v, want a usage error that names %s and --handler assign", args, err, want)
			}
		}
	}
}
