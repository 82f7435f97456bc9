package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/require"
)

// The file's rules are compared with those that the codec has by itself, and not with the
// planner's: they hold when the planner's are gone, and are not set again while they hold.
func TestRulesOfTheFileBesideThePlanners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "psidecar.yaml")
	require.NoError(t, os.WriteFile(path, []byte("codec-rules:\n  - job: a:1\n    unchanged: true\n"), 0o600))
	var f RuleFlags
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.String("config", path, "")
	f.Register(set)
	codec := require.Value(values.New(values.Options{Compact: compact.DefaultLimits}))(t)
	require.NoError(t, codec.SetPlanned([]values.Rule{{Job: "a:1", Unchanged: true}}))
	file := &ruleFile{flags: &f, codec: codec}
	require.NoError(t, file.read())
	before := codec.LocalRules()
	if len(before) != 1 {
		t.Fatalf("rules of the file: %+v", before)
	}
	require.NoError(t, file.read())
	if after := codec.LocalRules(); &after[0] != &before[0] {
		t.Error("the same rules are set again")
	}
	require.NoError(t, codec.SetPlanned(nil))
	if r := codec.Rules(); len(r) != 1 || !r[0].Unchanged {
		t.Errorf("without the planner's the rules are %+v", r)
	}
}

// The file's rules hold as soon as it changes; what the command line says stays,
// and a file that is wrong changes nothing.
func TestRulesFollowTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "psidecar.yaml")
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		if err := os.Rename(path+".new", path); err != nil { // never half of it
			t.Fatal(err)
		}
	}
	write("threshold: 0.5\n")
	var f RuleFlags
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.String("config", path, "")
	f.Register(set)
	require.NoError(t, set.Parse([]string{"--quantize=4"}))
	codec := require.Value(values.New(values.Options{Compact: compact.DefaultLimits}))(t)
	// After the flags were read, and before the file is followed.
	write("threshold: 0.75\ncodec-rules:\n  - keys: 5-9\n    job: 10.0.0.1:8000\n    slim: {alpha: 0.3, epsilon: 0.1}\n")
	var refused atomic.Bool
	before := slog.Default()
	slog.SetDefault(slog.New(refusals{before.Handler(), &refused}))
	t.Cleanup(func() { slog.SetDefault(before) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		f.Follow(ctx, codec)
		close(ended)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	become := func(want func([]values.Rule) bool) {
		t.Helper()
		require.Await(t, "other rules", func() error {
			if r := codec.Rules(); !want(r) {
				return fmt.Errorf("rules are %+v", r)
			}
			return nil
		})
	}
	become(func(r []values.Rule) bool {
		return len(r) == 2 && r[0].Slim != nil && r[0].Keys.Last == 9 && r[1].Threshold == 0.75 && r[1].Quantize == 4
	})
	write("threshold: 75\n# wrong\n")
	require.Eventually(t, "a refusal of the wrong file", refused.Load)
	if r := codec.Rules(); len(r) != 2 {
		t.Errorf("a wrong file led to %+v", r)
	}
	write("threshold: auto\ncodec-rules:\n  - keys: 5-9\n    threshold: auto\n    threshold-until: 9\n")
	become(func(r []values.Rule) bool {
		for i := range r {
			if !r[i].Auto || r[i].Threshold != values.AutoThreshold {
				return false
			}
		}
		return len(r) == 2 && r[0].Until == 9 && r[0].Keys.Last == 9 && r[1].Quantize == 4
	})
	write("unchanged: true\n")
	become(func(r []values.Rule) bool {
		return len(r) == 1 && r[0].Unchanged && r[0].Threshold == 0 && r[0].Quantize == 4
	})
}

// refusals notes in a log whether a file was refused.
type refusals struct {
	slog.Handler
	any *atomic.Bool
}

func (h refusals) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelError {
		h.any.Store(true)
	}
	return nil
}
