package reroute

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// writeSamples writes samples with so many ids in libsvm's format.
func writeSamples(t *testing.T, ids int) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 1))
	var b bytes.Buffer
	for i := range 400 {
		fmt.Fprint(&b, i%2)
		for id := i % 5; id < ids; id += 1 + rng.IntN(20) {
			fmt.Fprintf(&b, " %d:1", id)
		}
		fmt.Fprintln(&b)
	}
	file := filepath.Join(t.TempDir(), "samples.libsvm")
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	return file
}
