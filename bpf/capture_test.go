package bpf

import (
	"errors"
	"os"
	"sync"
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

// Calls that come while an agent ends get an error that says so.
func TestAskedAfterClose(t *testing.T) {
	c := openTest(t, Options{})
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for {
				_, err := c.Counts()
				_, also := c.ProgramStats()
				if (err != nil && !errors.Is(err, os.ErrClosed)) || (also != nil && !errors.Is(also, os.ErrClosed)) {
					t.Errorf("asked while it is closed: %v, %v", err, also)
				}
				if err != nil {
					return
				}
			}
		})
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	asking.Wait()
}
