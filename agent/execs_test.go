package agent

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/test/require"
)

// A process with a role of PS-lite's makes the agent look as soon as it begins,
// and is looked at whatever had its number before; others do not.
func TestNodesAreMetWhenTheyBegin(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	shell := require.Program(t, "sh")
	w := require.Value(bpf.OpenExecWatch())(t)
	a := &Agent{procs: newProcesses("/proc", nil), begun: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.meetExecs(ctx, w) }()
	// It becomes a node by exec only when the test says so.
	cmd := exec.Command(shell, "-c", `read line; DMLC_ROLE=worker exec "$0" -c 'read line'`, shell)
	cmd.Env = os.Environ()
	in := require.Value(cmd.StdinPipe())(t)
	require.NoError(t, cmd.Start())
	pid := cmd.Process.Pid
	a.procs.mu.Lock()
	a.procs.others = map[int]int{pid: seenOther}
	a.procs.mu.Unlock()
	began := time.Now()
	require.Value(in.Write([]byte("now\n")))(t)
	for known := true; known; { // other tests may have nodes too
		select {
		case <-a.begun:
		case <-time.After(time.Minute):
			t.Fatal("the agent was not told of a node that has begun")
		}
		a.procs.mu.Lock()
		_, known = a.procs.others[pid]
		a.procs.mu.Unlock()
	}
	t.Logf("told after %v", time.Since(began))
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Logf("the process ended with %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
