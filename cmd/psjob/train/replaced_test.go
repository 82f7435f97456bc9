package train

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// A worker ends between two steps without a word, and another takes its place and makes the steps
// that are left: the sums are exact, and no worker sees time run backward.
func TestWorkerTakesThePlaceOfAnother(t *testing.T) {
	const at = 5
	rest := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(rest, "5"), nil, 0o600))
	c := config(t, 2, 2)
	c.LostAfter = time.Minute
	as := func(r pslite.Role) van.Config { own := c; own.Role = r; return own }
	o := defaults("count")
	o.Async, o.Steps = true, 30
	group, ctx := errgroup.WithContext(t.Context())
	group.Go(func() error { return Schedule(ctx, as(pslite.Scheduler)) })
	for range c.Servers {
		group.Go(func() error { _, err := Serve(ctx, as(pslite.Server)); return err })
	}
	group.Go(func() error { _, err := Work(ctx, as(pslite.Worker), o); return err })
	first, next := o, o
	first.Count.Rest, next.Count.From = rest, at
	killed, kill := context.WithCancel(ctx)
	defer kill()
	log, end := io.Pipe()
	var victim errgroup.Group
	victim.Go(func() error {
		defer end.Close()
		config := as(pslite.Worker)
		config.Logger = slog.New(slog.NewTextHandler(end, nil))
		_, err := Work(killed, config, first)
		return err
	})
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if strings.Contains(lines.Text(), "resting") {
			kill()
		}
	}
	if err := victim.Wait(); err == nil {
		t.Error("the worker has ended in order")
	}
	var report WorkerReport
	group.Go(func() (err error) { report, err = Work(ctx, as(pslite.Worker), next); return err })
	require.NoError(t, group.Wait())
	if report.Checked == 0 {
		t.Errorf("the worker in its place has compared nothing: %+v", report)
	}
}
