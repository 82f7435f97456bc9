package logs

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A reason is why records were dropped.
type reason int

const (
	// bufferFull: the output was slower than the log for too long.
	bufferFull reason = iota
	// writeFailed: the output returned an error.
	writeFailed
	reasons
)

var reasonNames = [reasons]string{bufferFull: "buffer_full", writeFailed: "write_failed"}

// report returns a record about dropped ones. It ignores the level of the log: a gap is always
// reported.
func report(format func(io.Writer) slog.Handler, n uint64, why reason, cause error) []byte {
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log records dropped", 0)
	r.Add("records", n, "reason", reasonNames[why])
	if cause != nil {
		r.Add("error", cause)
	}
	var text bytes.Buffer
	// It fails only where writing does, which a buffer never does.
	_ = format(&text).Handle(context.Background(), r)
	return text.Bytes()
}

// writeRecords writes whole records, after a report of those that were lost before them by errors.
// If the write fails, all of them count as dropped. The next records bring the report, so that an
// output that always fails is not tried again and again.
func (w *Writer) writeRecords(records []byte) {
	if w.failed > 0 {
		if _, err := w.out.Write(w.reportFailed()); err == nil {
			w.failed = 0
		}
	}
	if _, err := w.out.Write(records); err != nil {
		n := uint64(bytes.Count(records, []byte{'\n'}))
		w.failed += n
		w.cause = err
		w.countFailed(n)
	}
}

// reportFailed returns a record about those that were lost by errors.
func (w *Writer) reportFailed() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return report(w.format, w.failed, writeFailed, w.cause)
}

// countFailed counts records that were lost by errors.
func (w *Writer) countFailed(n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropped[writeFailed] += n
}

var descDropped = prometheus.NewDesc("psidecar_log_records_dropped_total", "Log records that were dropped, by reason: buffer_full (standard error was too slow; the process did not wait for it), write_failed.", []string{"reason"}, nil)

// Describe implements [prometheus.Collector].
func (w *Writer) Describe(out chan<- *prometheus.Desc) { out <- descDropped }

// Collect implements [prometheus.Collector].
func (w *Writer) Collect(out chan<- prometheus.Metric) {
	w.mu.Lock()
	dropped := w.dropped
	w.mu.Unlock()
	for why, n := range dropped {
		out <- prometheus.MustNewConstMetric(descDropped, prometheus.CounterValue, float64(n), reasonNames[why])
	}
}
