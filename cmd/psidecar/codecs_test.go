package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

func TestCodecUsage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "bad.yaml")
	require.NoError(t, os.WriteFile(file, []byte("codec-rules:\n  - keys: 0-9\n    treshold: 0.9\n"), 0o600))
	for _, c := range []struct{ args, want string }{
		{"--threshold 1", "--threshold 1: want a sparsity from 0 (off) to below 1"},
		{"--threshold -0.1", "--threshold -0.1"},
		{"--threshold 0.9 --threshold-lifespan 0", "--threshold-lifespan 0: want 1 push or more"},
		{"--quantize 9", "--quantize 9: want 1 to 8 bits"},
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
