package bpf

import (
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

func openTest(t testing.TB, o Options) *Capture {
	t.Helper()
	require.BPF(t)
	c, err := Open(o)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestOpen(t *testing.T) {
	openTest(t, Options{})
}
