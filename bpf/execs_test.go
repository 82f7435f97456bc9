package bpf

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// Every started process is reported once, with the pid that its parent knows.
func TestProcessesAreTold(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program := require.Program(t, "true")
	w := require.Value(OpenExecWatch())(t)
	want := map[int]bool{}
	for range 20 {
		cmd := exec.Command(program)
		require.NoError(t, cmd.Run())
		want[cmd.Process.Pid] = true
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(want) > 0 {
		pid, err := w.Next(ctx) // others are reported as well
		if err != nil {
			t.Fatalf("%d processes were not told: %v", len(want), err)
		}
		delete(want, pid)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := w.Next(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// A Next that waits ends with its context, also where nothing is executed, and
// the next call is none the wiser.
func TestWaitingEndsWithTheContext(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	w, err := OpenExecWatch()
	require.NoError(t, err)
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		for err == nil {
			_, err = w.Next(ctx)
		}
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Next ended with %v", err)
		}
		err = nil
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
