package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

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
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		resp, err := http.Get("http://" + address + "/metrics")
		if err == nil {
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		if time.Now().After(end) {
			t.Fatalf("no metrics for a minute: %v", err)
		}
	}
}

// A proxy starts and serves while its standard error stands still, and nothing of its log is lost
// where that recovers before the proxy ends.
func TestDaemonDoesNotWaitForItsLog(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
