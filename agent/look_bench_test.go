package agent

import (
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// BenchmarkLook says what share of a core it takes to look for processes, twice
// a second, on a host where 1,000 have the environment of a node and do nothing.
func BenchmarkLook(b *testing.B) {
	require.Root(b)
	sleep := require.Program(b, "sleep")
	for range 1000 {
		cmd := exec.Command(sleep, "1000")
		cmd.Env = []string{"DMLC_ROLE=worker", "DMLC_PS_ROOT_URI=198.18.0.1", "DMLC_PS_ROOT_PORT=8000"}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	p := newProcesses("/proc", nil)
	now := time.Now()
	p.now = func() time.Time { return now }
	if _, err := p.refresh(anew); err != nil {
		b.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	for b.Loop() {
		now = now.Add(discoverEvery)
		if _, err := p.glance(); err != nil {
			b.Fatal(err)
		}
	}
	took := threadTime() - before
	b.ReportMetric(100*took.Seconds()/(float64(b.N)*discoverEvery.Seconds()), "%core")
}
