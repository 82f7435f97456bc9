package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/psidecar/psidecar/test/require"
)

// long is how long a test waits for what must come.
const long = time.Minute

// A gate is an output that stands still until it is opened.
type gate struct {
	entered chan struct{} // gets a value when a write comes to the closed gate
	open    chan struct{}

	mu     sync.Mutex // guards writes
	writes []string
}

func newGate() *gate { return &gate{entered: make(chan struct{}, 1), open: make(chan struct{})} }

func (g *gate) Write(b []byte) (int, error) {
	select {
	case <-g.open:
	default:
		g.entered <- struct{}{}
		<-g.open
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes = append(g.writes, string(b))
	return len(b), nil
}

func (g *gate) lines() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Split(strings.TrimSuffix(strings.Join(g.writes, ""), "\n"), "\n")
}

// put writes one record and fails the test if that does not work.
func put(t *testing.T, w io.Writer, record string) {
	t.Helper()
	if n, err := io.WriteString(w, record); n != len(record) || err != nil {
		t.Fatalf("%q: %d bytes, %v", record, n, err)
	}
}

// droppedOf returns the value of the metric by reason.
func droppedOf(t testing.TB, w *Writer) (full, failed float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(w)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "psidecar_log_records_dropped_total" {
		t.Fatalf("%v, %v", families, err)
	}
	values := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		values[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	if len(values) != 2 {
		t.Fatalf("by reason: %v", values)
	}
	return values["buffer_full"], values["write_failed"]
}

// While the output stands still no record waits for it. Those that fit are written in their order
// afterwards, and what is missing is named where it is missing.
func TestRecordsDoNotWait(t *testing.T) {
	const size, records = 1 << 10, 1000
	g := newGate()
	w := New(g, size)
	w.StartBuffering()
	put(t, w, "record 0\n")
	<-g.entered
	used, want := len("record 0\n"), 1
	for i := 1; i < records; i++ {
		record := fmt.Sprintf("record %d\n", i)
		put(t, w, record)
		if used+len(record) <= size && want == i {
			used, want = used+len(record), i+1
		}
	}
	if full, failed := droppedOf(t, w); full != float64(records-want) || failed != 0 {
		t.Errorf("%v dropped and %v failed; want %d and 0", full, failed, records-want)
	}
	close(g.open)
	if !w.StopBuffering(long) {
		t.Fatal("not everything was written")
	}
	put(t, w, "later\n")
	lines := g.lines()
	if len(lines) != want+2 || lines[want+1] != "later" {
		t.Fatalf("%d lines, want %d, a report and \"later\": %q", len(lines), want, lines)
	}
	for i := range want {
		if lines[i] != fmt.Sprintf("record %d", i) {
			t.Errorf("line %d is %q", i, lines[i])
		}
	}
	if report := lines[want]; !strings.Contains(report, fmt.Sprintf(`level=WARN msg="log records dropped" records=%d reason=buffer_full`, records-want)) {
		t.Errorf("the report: %s", report)
	}
}

// After a gap the log goes on. Each gap is reported once.
func TestLogGoesOnAfterAGap(t *testing.T) {
	g := newGate()
	w := New(g, 10)
	w.StartBuffering()
	put(t, w, "first\n")
	<-g.entered
	put(t, w, "too long for the rest\n")
	put(t, w, "ab\n") // would fit, but must not overtake the gap
	close(g.open)
	if !w.StopBuffering(long) {
		t.Fatal("not everything was written")
	}
	w.StartBuffering()
	put(t, w, "second\n")
	if !w.StopBuffering(long) {
		t.Fatal("not everything was written")
	}
	lines := g.lines()
	if len(lines) != 3 || lines[0] != "first" || !strings.Contains(lines[1], "records=2 reason=buffer_full") || lines[2] != "second" {
		t.Errorf("%q", lines)
	}
}

// Each goroutine's records are complete and in order, each in one piece, however they are written.
func TestOrderIsKept(t *testing.T) {
	const loggers, records = 8, 500
	g := newGate()
	w := New(g, Size)
	w.StartBuffering()
	log := w.NewLogger(func(out io.Writer) slog.Handler { return slog.NewJSONHandler(out, nil) })
	var wg sync.WaitGroup
	for who := range loggers {
		wg.Go(func() {
			for i := range records {
				log.Info("counted", "who", who, "i", i)
			}
		})
	}
	<-g.entered
	close(g.open)
	wg.Wait()
	if !w.StopBuffering(long) {
		t.Fatal("not everything was written")
	}
	var next [loggers]int
	for _, line := range g.lines() {
		var r struct{ Who, I int }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		if r.I != next[r.Who] {
			t.Fatalf("record %d of logger %d, want %d", r.I, r.Who, next[r.Who])
		}
		next[r.Who]++
	}
	for who, n := range next {
		if n != records {
			t.Errorf("%d records of logger %d, want %d", n, who, records)
		}
	}
	for _, write := range g.writes {
		if !strings.HasSuffix(write, "\n") || len(write) > writeSize {
			t.Fatalf("a write of %d bytes that ends in %q", len(write), write[len(write)-1:])
		}
	}
}

// The end of a process does not wait for ever for an output that stands still, and whoever logs
// after that does not wait either. If the output recovers, nothing is lost.
func TestEndWaitsForALimitedTime(t *testing.T) {
	g := newGate()
	w := New(g, Size)
	w.StartBuffering()
	put(t, w, "one\n")
	<-g.entered
	put(t, w, "two\n")
	if w.StopBuffering(time.Millisecond) {
		t.Error("everything was written, though the output stands still")
	}
	put(t, w, "three\n")
	close(g.open)
	if !w.StopBuffering(long) {
		t.Fatal("not everything was written")
	}
	put(t, w, "four\n") // synchronous again
	if got := strings.Join(g.lines(), " "); got != "one two three four" {
		t.Errorf("%q", got)
	}
}

// A Writer that does not buffer returns the errors of its output.
func TestWithoutBuffering(t *testing.T) {
	var out bytes.Buffer
	w := New(&out, 0)
	put(t, w, "at once\n")
	if out.String() != "at once\n" || !w.StopBuffering(0) {
		t.Errorf("%q", out.String())
	}
	if _, err := New(&flaky{failures: 1}, 0).Write([]byte("x\n")); !errors.Is(err, errFull) {
		t.Errorf("error %v", err)
	}
}

var errFull = errors.New("no space left")

// A flaky output fails some times before it works.
type flaky struct {
	failures int
	text     bytes.Buffer
}

func (f *flaky) Write(b []byte) (int, error) {
	if f.failures > 0 {
		f.failures--
		return 0, errFull
	}
	return f.text.Write(b)
}

// Records that cannot be written are counted and reported once something can be, in the format of
// the log.
func TestFailedWritesAreReported(t *testing.T) {
	// The first record fails, the report of it before the second one, and that one too.
	f := &flaky{failures: 3}
	w := New(f, Size)
	log := w.NewLogger(func(out io.Writer) slog.Handler {
		return slog.NewJSONHandler(out, &slog.HandlerOptions{Level: slog.LevelError})
	})
	for _, text := range []string{"a", "b", "c"} {
		w.StartBuffering()
		log.Error(text)
		if !w.StopBuffering(long) {
			t.Fatal("not everything was written")
		}
	}
	if full, failed := droppedOf(t, w); full != 0 || failed != 2 {
		t.Errorf("%v dropped and %v failed, want 0 and 2", full, failed)
	}
	lines := strings.Split(strings.TrimSpace(f.text.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[1], `"msg":"c"`) {
		t.Fatalf("%q", lines)
	}
	var report struct {
		Level, Msg, Reason, Error string
		Records                   int
	}
	if err := json.Unmarshal([]byte(lines[0]), &report); err != nil || report.Level != "WARN" || report.Msg != "log records dropped" || report.Records != 2 || report.Reason != "write_failed" || report.Error != errFull.Error() {
		t.Errorf("%v: %s", err, lines[0])
	}
}

// A backlog is written in pieces of whole records.
func TestPartsAreWholeRecords(t *testing.T) {
	large, short := strings.Repeat("x", writeSize)+"\n", strings.Repeat("y", 99)+"\n"
	for _, tc := range []struct {
		text string
		want int
	}{
		{short, 100},
		{short + large, 100},
		{large + short, len(large)},
		{large, len(large)},
		{strings.Repeat(short, 1000), 4000},
		{strings.Repeat("z", 2*writeSize), 2 * writeSize},
	} {
		if got := partOf([]byte(tc.text)); got != tc.want {
			t.Errorf("%d bytes of %d, want %d", got, len(tc.text), tc.want)
		}
	}
}

// The metric keeps to Prometheus's conventions.
func TestMetric(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(New(io.Discard, 0))
	families := require.Value(registry.Gather())(t)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
