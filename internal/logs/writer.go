// Package logs keeps the log of a daemon from holding the daemon up.
//
// Code that logs often holds a lock that the messages of a job need too. A write to the log takes
// as long as the disk or the journal behind it stands still, so a daemon must not wait for it. A
// [Writer] that buffers copies each record into a bounded buffer, and one goroutine writes the
// buffer out. The order is kept. Records that do not fit are dropped, counted and reported.
package logs

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	// Size is the size of a daemon's buffer in bytes. It holds some thousands of records.
	Size = 1 << 20
	// FlushWait bounds how long the end of a daemon waits for its log. It is short, since the
	// successor of a proxy waits for that end.
	FlushWait = 2 * time.Second

	// writeSize is the most that the kernel writes to a pipe in one piece (PIPE_BUF). Larger
	// writes could mix with those of another process, such as the successor of a proxy.
	writeSize = 4096
	// keptSize bounds the memory that the buffer keeps after it was written.
	keptSize = 64 << 10
)

// A Writer passes the records of a log on. At first it does so synchronously. Between
// [Writer.StartBuffering] and [Writer.StopBuffering] a call of Write only copies its record, and
// never waits for the output. It is a [prometheus.Collector] of the records that were dropped.
//
// Its methods may be called concurrently. Each call of Write must be one record, which ends with a
// line break, as slog's handlers do it.
type Writer struct {
	out  io.Writer
	size int

	// failed counts the records that were lost by errors and are not reported yet; cause is the
	// last error. They belong to the goroutine that writes.
	failed uint64
	cause  error

	// mu guards what follows. It is never held during a write to out.
	mu     sync.Mutex
	format func(io.Writer) slog.Handler
	// more is signaled when there is something to take, and when stopping is set.
	more *sync.Cond
	// buffering is set while a goroutine writes. It ends once stopping is set and nothing is
	// left, and closes done.
	buffering, stopping bool
	done                chan struct{}
	// pending has whole records that the goroutine has not taken yet, and writing is the number
	// of bytes that it has taken and not yet written. Their sum is at most size.
	pending []byte
	writing int
	// full counts the records that were dropped since pending was last taken. They follow those
	// in pending: nothing is added to pending while full is not 0.
	full    uint64
	dropped [reasons]uint64
}

// New returns a Writer to out. Its buffer has size bytes, while it buffers.
func New(out io.Writer, size int) *Writer {
	w := &Writer{out: out, size: size, format: func(out io.Writer) slog.Handler { return slog.NewTextHandler(out, nil) }}
	w.more = sync.NewCond(&w.mu)
	return w
}

// NewLogger returns a logger to w. format makes its handler; the records of w itself have the same
// format.
func (w *Writer) NewLogger(format func(io.Writer) slog.Handler) *slog.Logger {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.format = format
	return slog.New(format(w))
}

// Write implements [io.Writer]. While w buffers it reports no errors.
func (w *Writer) Write(record []byte) (int, error) {
	w.mu.Lock()
	if !w.buffering {
		w.mu.Unlock()
		return w.out.Write(record)
	}
	defer w.mu.Unlock()
	if w.full > 0 || len(w.pending)+w.writing+len(record) > w.size {
		w.full++
		w.dropped[bufferFull]++
	} else {
		w.pending = append(w.pending, record...)
	}
	w.more.Signal()
	return len(record), nil
}

// StartBuffering makes w buffer from now on.
func (w *Writer) StartBuffering() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = false
	if w.buffering {
		return
	}
	w.buffering, w.done = true, make(chan struct{})
	go w.writeBuffer(w.done)
}

// StopBuffering waits until everything is written, at most for the given time, and reports whether
// it is. From then on w is synchronous. If time runs out, w buffers until everything is written.
func (w *Writer) StopBuffering(wait time.Duration) bool {
	w.mu.Lock()
	if !w.buffering {
		w.mu.Unlock()
		return true
	}
	w.stopping = true
	w.more.Signal()
	done := w.done
	w.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// writeBuffer writes what is pending until buffering stops.
func (w *Writer) writeBuffer(done chan<- struct{}) {
	defer close(done)
	var text []byte
	for ok := true; ok; {
		if cap(text) > keptSize {
			text = nil
		}
		text, ok = w.takePending(text[:0])
		for rest := text; len(rest) > 0; {
			n := partOf(rest)
			w.writeRecords(rest[:n])
			rest = rest[n:]
		}
	}
}

// takePending waits for records and takes them, with a report of those that were dropped after
// them. spare becomes the memory of the next ones. ok is false when buffering has stopped and
// nothing is left.
func (w *Writer) takePending(spare []byte) (text []byte, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing = 0
	for len(w.pending) == 0 && w.full == 0 {
		if w.stopping {
			w.buffering = false
			return nil, false
		}
		w.more.Wait()
	}
	text, w.pending = w.pending, spare
	w.writing = len(text)
	if w.full > 0 {
		text = append(text, report(w.format, w.full, bufferFull, nil)...)
		w.full = 0
	}
	return text, true
}

// partOf returns how many bytes of text to write next: whole records of at most writeSize bytes, or
// one that is longer.
func partOf(text []byte) int {
	if len(text) <= writeSize {
		return len(text)
	}
	if at := bytes.LastIndexByte(text[:writeSize], '\n'); at >= 0 {
		return at + 1
	}
	if at := bytes.IndexByte(text[writeSize:], '\n'); at >= 0 {
		return writeSize + at + 1
	}
	return len(text)
}
