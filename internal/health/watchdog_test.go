package health

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// systemd's watchdog is told that the process is alive while all loops turn, and
// not while one is stuck.
func TestWatchdogHearsWhileAllLoopsTurn(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	systemd := require.Value(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "60000")
	heard := func() bool {
		b := make([]byte, 64)
		n, err := systemd.Read(b)
		if err == nil && string(b[:n]) != "WATCHDOG=1" {
			t.Errorf("systemd hears %q", b[:n])
		}
		return err == nil
	}
	var loops Loops
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- loops.Watch(ctx) }()
	systemd.SetReadDeadline(time.Now().Add(time.Minute))
	for range 3 {
		if !heard() {
			t.Fatal("systemd hears nothing")
		}
	}
	stuck := loops.Add("a loop", 300*time.Millisecond)
	require.Eventually(t, "the loop is late", func() bool { return loops.Late() != nil })
	end := time.Now().Add(time.Minute)
	for quiet := false; !quiet; { // 15 times as long as from one word to the next
		if time.Now().After(end) {
			t.Fatal("systemd hears that all is well while a loop is stuck")
		}
		systemd.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		quiet = !heard()
	}
	stuck.Beat()
	systemd.SetReadDeadline(time.Now().Add(time.Minute))
	if !heard() {
		t.Error("systemd hears nothing when the loop turns again")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A watchdog that is another process's, or none, is not told anything.
func TestNoWatchdog(t *testing.T) {
	for _, pid := range []string{"", "1"} {
		t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
		t.Setenv("WATCHDOG_USEC", "60000")
		if t.Setenv("WATCHDOG_PID", pid); pid == "" {
			os.Unsetenv("NOTIFY_SOCKET")
		}
		w, err := openWatchdog()
		if err != nil || w.conn != nil {
			t.Errorf("process %q: %v, %v", pid, w.conn, err)
		}
		w.tell("WATCHDOG=1")
		w.close()
	}
}
