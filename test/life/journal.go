package life

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// A journal has a line for each thing that happened, and the folder in which the life leaves
// its traces. The folder is removed if the life went well. Its methods may be called
// concurrently.
type journal struct {
	t      testing.TB
	dir    string
	began  time.Time
	file   *os.File
	end    context.CancelCauseFunc
	within int // failures that may still come

	mu     sync.Mutex // guards file and failed
	failed []string
}

// errEnough is the cause with which a life ends before its time.
var errEnough = errors.New("enough has failed")

// newJournal makes the folder. end is called when as many failures have come as the config
// allows.
func newJournal(t testing.TB, c Config, end context.CancelCauseFunc) *journal {
	t.Helper()
	dir, err := os.MkdirTemp("", "psd-life-") // the sockets' paths must be short
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	j := &journal{t: t, dir: dir, began: time.Now(), end: end, within: max(1, c.Failures)}
	require.NoError(t, os.Mkdir(j.path("logs"), 0o755))
	j.file = require.Value(os.Create(j.path("events.log")))(t)
	t.Cleanup(func() {
		j.file.Close()
		if t.Failed() {
			fmt.Fprintf(t.Output(), "all that is known of it is in %s\n", dir)
			return
		}
		os.RemoveAll(dir)
	})
	return j
}

// path returns a path in the folder.
func (j *journal) path(name ...string) string {
	return filepath.Join(append([]string{j.dir}, name...)...)
}

// say writes a line with the seconds since the beginning, to the journal and the test's output.
func (j *journal) say(format string, args ...any) {
	line := fmt.Sprintf("%7.1f  %s\n", time.Since(j.began).Seconds(), fmt.Sprintf(format, args...))
	j.mu.Lock()
	defer j.mu.Unlock()
	fmt.Fprint(j.t.Output(), line)
	fmt.Fprint(j.file, line)
}

// fail notes a failure, and ends the life if it was one too many. The test goes on otherwise:
// what comes later may say more about the cause.
func (j *journal) fail(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	j.say("FAILED: %s", what)
	j.mu.Lock()
	j.failed = append(j.failed, what)
	enough := len(j.failed) >= j.within
	j.mu.Unlock()
	j.t.Fail()
	if enough {
		j.end(errEnough)
	}
}

// isLast reports whether the next failure ends the life.
func (j *journal) isLast() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.failed)+1 >= j.within
}

// hasFailed reports whether there was a failure.
func (j *journal) hasFailed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.failed) > 0
}

// keepFiles copies into the folder what would be gone otherwise, if something failed, and
// prints the ends of the services' logs.
func (j *journal) keepFiles(l *Life) {
	if !j.hasFailed() {
		return
	}
	for _, h := range l.fleet.sidecars {
		if err := j.keepState(h); err != nil {
			j.say("keeping the state of %s: %v", h.host.Name, err)
		}
	}
	for _, s := range l.fleet.services() {
		if last := s.tail(30); last != "" {
			fmt.Fprintf(j.t.Output(), "--- %s, last lines of its log\n%s", s, last)
		}
	}
}

// keepState copies the files of a proxy's state. Its socket is no regular file, and is left
// out.
func (j *journal) keepState(h *sidecar) error {
	files, err := filesIn(h.state)
	if err != nil {
		return err
	}
	for _, from := range files {
		name, err := filepath.Rel(h.state, from)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		to := j.path("state-"+h.host.Name, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
