package daemon

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// The file's rules are compared with those that the codec has by itself, and not with the
// planner's: they hold when the planner's are gone, and are not set again while they hold.
func TestRulesOfTheFileBesideThePlanners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "psidecar.yaml")
	if err := os.WriteFile(path, []byte("codec-rules:\n  - job: a:1\n    unchanged: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var f RuleFlags
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.String("config", path, "")
	f.Register(set)
	codec, err := values.New(values.Options{Compact: compact.DefaultLimits})
	if err != nil {
		t.Fatal(err)
	}
	if err := codec.SetPlanned([]values.Rule{{Job: "a:1", Unchanged: true}}); err != nil {
		t.Fatal(err)
	}
	file := &ruleFile{flags: &f, codec: codec}
	if err := file.read(); err != nil {
		t.Fatal(err)
	}
	before := codec.LocalRules()
	if len(before) != 1 {
		t.Fatalf("rules of the file: %+v", before)
	}
	if err := file.read(); err != nil {
		t.Fatal(err)
	}
	if after := codec.LocalRules(); &after[0] != &before[0] {
		t.Error("the same rules are set again")
	}
	if err := codec.SetPlanned(nil); err != nil {
		t.Fatal(err)
	}
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
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil { // never half of it
			t.Fatal(err)
		}
	}
	write("threshold: 0.5\n")
	var f RuleFlags
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.String("config", path, "")
	f.Register(set)
	if err := set.Parse([]string{"--quantize=4"}); err != nil {
		t.Fatal(err)
	}
	codec, err := values.New(values.Options{Compact: compact.DefaultLimits})
	if err != nil {
		t.Fatal(err)
	}
	// After the flags were read, and before the file is followed.
	write("threshold: 0.75\ncodec-rules:\n  - keys: 5-9\n    job: 10.0.0.1:8000\n    slim: {alpha: 0.3, epsilon: 0.1}\n")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		f.Follow(ctx, codec)
		close(ended)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	await := func(want func([]values.Rule) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !want(codec.Rules()); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("rules are %+v", codec.Rules())
			}
		}
	}
	await(func(r []values.Rule) bool {
		return len(r) == 2 && r[0].Slim != nil && r[0].Keys.Last == 9 && r[1].Threshold == 0.75 && r[1].Quantize == 4
	})
	write("threshold: 75\n# wrong\n")
	time.Sleep(1500 * time.Millisecond)
	if r := codec.Rules(); len(r) != 2 {
		t.Errorf("a wrong file led to %+v", r)
	}
	write("unchanged: true\n")
	await(func(r []values.Rule) bool {
		return len(r) == 1 && r[0].Unchanged && r[0].Threshold == 0 && r[0].Quantize == 4
	})
}
