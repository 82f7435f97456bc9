package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// lockedBuffer is a buffer to which several goroutines write.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// stalledOutput is a standard error that stands still until it is opened.
type stalledOutput struct {
	open chan struct{}
	text lockedBuffer
}

func (s *stalledOutput) Write(p []byte) (int, error) {
	<-s.open
	return s.text.Write(p)
}

// metricsOf returns what a daemon that starts serves at /metrics, once it does.
func metricsOf(t *testing.T, address string) string {
	t.Helper()
	var text []byte
	require.Await(t, "the daemon serves", func() error {
		resp, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err = io.ReadAll(resp.Body)
		return err
	})
	return string(text)
}

// A proxy starts and serves while its standard error stands still, and nothing of its log is lost
// where that recovers before the proxy ends.
func TestDaemonDoesNotWaitForItsLog(t *testing.T) {
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	status := l.Addr().String()
	l.Close()
	log := &stalledOutput{open: make(chan struct{})}
	resume := sync.OnceFunc(func() { close(log.open) })
	defer resume()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, env{
			args:   []string{"proxy", "--mesh-port", "0", "--forward", "127.0.0.1:0=127.0.0.1:1", "--http", status, "--proxy-socket", "", "--state-dir", t.TempDir()},
			stdout: io.Discard, stderr: log, lookup: func(string) (string, bool) { return "", false },
		})
	}()
	if text := metricsOf(t, status); !strings.Contains(text, "psidecar_log_records_dropped_total{reason=\"buffer_full\"} 0\n") {
		t.Errorf("no count of dropped log records in %s", text)
	}
	resume()
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
	text := log.text.String()
	begin, end := strings.Index(text, "msg=forwarding "), strings.Index(text, "msg=\"shutting down\"")
	if begin < 0 || end < begin {
		t.Errorf("the log: %s", text)
	}
}
