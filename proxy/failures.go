package proxy

import (
	"context"
	"log/slog"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/psidecar/psidecar/internal/reason"
)

// Rate and burst of logged failures. A process that makes failing connections must not fill a
// disk; metrics count all of them.
const (
	logsPerSecond = 5
	logsAtOnce    = 50
)

// failures logs why connections have failed.
type failures struct {
	log     *slog.Logger
	limit   *rate.Limiter
	omitted atomic.Uint64 // since the last one that was logged
}

func newFailures(log *slog.Logger) *failures {
	return &failures{log: log, limit: rate.NewLimiter(logsPerSecond, logsAtOnce)}
}

// logFailure logs a failure: at debug level what jobs, networks and health checks do every
// day.
func (f *failures) logFailure(r reason.Reason, err error) {
	ctx, level := context.Background(), slog.LevelWarn
	switch r {
	// Every job that ends resets connections, and health checks say no hello.
	case reason.ResetByJob, reason.ResetByFarSide, reason.Unreachable, reason.Stopped, reason.NotHello:
		level = slog.LevelDebug
	}
	if !f.log.Enabled(ctx, level) {
		return
	}
	if !f.limit.Allow() {
		f.omitted.Add(1)
		return
	}
	attrs := []any{"reason", r, "error", err}
	// The next one that is logged says how many were not.
	if n := f.omitted.Swap(0); n > 0 {
		attrs = append(attrs, "omitted", n)
	}
	f.log.Log(ctx, level, "connection failed", attrs...)
}

// fail counts and logs why a connection has failed.
func (p *Proxy) fail(err error) {
	r := reason.Of(err)
	p.conns.failed(r)
	p.failures.logFailure(r, err)
}
