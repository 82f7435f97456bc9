package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// topAgent answers as an agent with two jobs does.
func topAgent(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(path, body string) {
		mux.HandleFunc("GET /api/v1/"+path, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, strings.ReplaceAll(body, "JOB", r.URL.Query().Get("job")))
		})
	}
	answer("agent", `{"host":"host-0","version":"v1"}`)
	answer("jobs", `{"jobs":[{"job":"10.0.0.1:9000","state":"over"},{"job":"10.0.0.2:9000","state":"running","steps_per_second":24.5},{"job":"10.0.0.3:9000\u001b[2J","state":"running"}]}`)
	answer("servers", `{"servers":[{"name":"server0 of JOB","share":1}],"workers":[]}`)
	answer("history", `{"points":[{"from":"2026-01-01T00:00:00Z","to":"2026-01-01T00:00:05Z","steps_per_second":24.5}]}`)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func TestTopPrintsOnce(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), env{args: []string{"top", "--agent", topAgent(t)}, stdin: strings.NewReader(""), stdout: &out, stderr: &errs, lookup: os.LookupEnv})
	if code != 0 || !strings.Contains(out.String(), "> 10.0.0.2:9000") || !strings.Contains(out.String(), "server0 of 10.0.0.2:9000") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%d: %s%s", code, &out, &errs)
	}
	out.Reset()
	code = run(t.Context(), env{args: []string{"top", "--agent", topAgent(t), "--job", "10.0.0.1:9000"}, stdin: strings.NewReader(""), stdout: &out, stderr: &errs, lookup: os.LookupEnv})
	if code != 0 || !strings.Contains(out.String(), "> 10.0.0.1:9000") {
		t.Errorf("of a job by name: %d: %s%s", code, &out, &errs)
	}
	if code := run(t.Context(), env{args: []string{"top", "--every", "1ms"}, stdin: strings.NewReader(""), stdout: &out, stderr: &errs, lookup: os.LookupEnv}); code != 2 {
		t.Errorf("--every 1ms: exit code %d", code)
	}
}

// openTerminal returns a terminal and what is at its other side.
func openTerminal(t *testing.T) (terminal, other *os.File) {
	t.Helper()
	other, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		require.Missing(t, "needs pseudoterminals: %v", err)
	}
	t.Cleanup(func() { other.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(other.Fd()), unix.TIOCSPTLCK, 0))
	n := require.Value(unix.IoctlGetInt(int(other.Fd()), unix.TIOCGPTN))(t)
	terminal = require.Value(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { terminal.Close() })
	require.NoError(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}))
	return terminal, other
}

// seen gathers what a terminal is sent.
type seen struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *seen) read(f *os.File) {
	b := make([]byte, 4096)
	for {
		n, err := f.Read(b)
		s.mu.Lock()
		s.text.Write(b[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *seen) await(t *testing.T, what string) {
	t.Helper()
	require.Await(t, "the terminal shows "+what, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if text := s.text.String(); !strings.Contains(text, what) {
			return fmt.Errorf("it shows %q", text)
		}
		return nil
	})
}

// On a terminal the screen is shown, keys are read, q ends it and the terminal is as before.
func TestTopLive(t *testing.T) {
	terminal, other := openTerminal(t)
	var shown seen
	go shown.read(other)
	before := require.Value(unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan int, 1)
	agent := topAgent(t)
	go func() {
		ended <- run(ctx, env{args: []string{"top", "--agent", agent, "--every", "100ms"}, stdin: terminal, stdout: terminal, stderr: terminal, lookup: os.LookupEnv})
	}()
	shown.await(t, "server0 of 10.0.0.2:9000")
	send := func(keys string) {
		t.Helper()
		require.Value(other.WriteString(keys))(t)
	}
	send("?")
	shown.await(t, "scroll")
	send("q")
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
	shown.await(t, "\x1b[?1049l")
	after, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil || after.Lflag != before.Lflag || after.Oflag != before.Oflag {
		t.Errorf("the terminal's modes are %x %x, before they were %x %x (%v)", after.Lflag, after.Oflag, before.Lflag, before.Oflag, err)
	}
	shown.mu.Lock()
	defer shown.mu.Unlock()
	if text := shown.text.String(); strings.Contains(text, "9000\x1b[2J") || !strings.Contains(text, "\x1b[?1049h") {
		t.Errorf("a job's name works the terminal: %q", text)
	}
}
