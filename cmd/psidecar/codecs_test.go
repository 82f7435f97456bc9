package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

func TestCodecUsage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(file, []byte("codec-rules:\n  - keys: 0-9\n    treshold: 0.9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"--threshold 1", "--threshold 1: want a sparsity from 0 (off) to below 1"},
		{"--threshold -0.1", "--threshold -0.1"},
		{"--threshold 0.9 --threshold-lifespan 0", "--threshold-lifespan 0: want 1 push or more"},
		{"--threshold 0.9 --threshold-drain -1", "threshold-drain -1"},
		{"--quantize 9", "--quantize 9: want 1 to 8 bits"},
		{"--quantize 8 --quantize-bucket 1", "--quantize-bucket 1"},
		{"--slim 0.3", "--slim \"0.3\": want ALPHA,EPSILON"},
		{"--slim 0.3,x", "want ALPHA,EPSILON"},
		{"--slim 0.3,0.1,0", "want ALPHA,EPSILON"},
		{"--slim 0.3,0.1,1,change", "want ALPHA,EPSILON"},
		{"--slim 0.3,0.4", "--slim epsilon 0.4: want 0 to alpha"},
		{"--slim 0.3,0.1 --unchanged", "exclude each other"},
		{"--char-values float8", "float8"},
		{"--threshold 0.9 --codec none", "they need --codec auto or compact"},
		{"--codec-memory -1", "--codec-memory -1"},
		{"--config " + file, "treshold"},
	} {
		code, _, stderr := runTest(t, nil, append([]string{"proxy", "--proxy-socket=", "--http="}, strings.Fields(c.args)...)...)
		if code != 2 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, %q, want %q", c.args, code, stderr, c.want)
		}
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
	var f codecFlags
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.String("config", path, "")
	f.register(set)
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
		f.follow(ctx, codec)
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
