package proxy

import (
	"bytes"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/test/require"
)

// Of very many failures few are logged, which say how many are not.
func TestFewFailuresAreLogged(t *testing.T) {
	const n = 100_000
	var out bytes.Buffer
	f := newFailures(slog.New(slog.NewTextHandler(&out, nil)))
	f.logFailure(reason.ResetByJob, errors.New("every day"))
	for range n {
		f.logFailure(reason.TLS, errors.New("no certificate"))
	}
	f.limit.SetLimitAt(time.Now().Add(-time.Minute), 1e9) // much later
	f.logFailure(reason.TLS, errors.New("the last"))
	lines, omitted := 0, 0
	for line := range strings.Lines(out.String()) {
		lines++
		if _, text, ok := strings.Cut(strings.TrimSpace(line), "omitted="); ok {
			more := require.Value(strconv.Atoi(text))(t)
			omitted += more
		}
	}
	if lines < logsAtOnce || lines > n/100 || lines+omitted != n+1 || !strings.Contains(out.String(), "the last") {
		t.Errorf("%d lines that speak of %d more, of %d failures", lines, omitted, n+1)
	}
	if strings.Contains(out.String(), "every day") {
		t.Error("what happens every day is logged")
	}
}
