package proxy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// costSizes are the pushes', in bytes of keys and values.
var costSizes = []int{100, 1000, 10_000, 100_000, 1 << 20}

// costInFlight are how many pushes wait for their answers at a time.
var costInFlight = []int{1, 16}

// Pushes of costSlowSize bytes are also measured where links have costSlowRate
// bits a second: there a message comes packet by packet.
const (
	costSlowSize = 10_000
	costSlowRate = 50_000_000
)

const (
	costRounds = 5
	costFor    = 100 * time.Millisecond // each cell, in each round
)

// cell is a way, size and number in flight; its runs, one a round.
type cell struct {
	cpu            []float64 // microseconds of processor time a push, of both proxies
	rate           []float64 // pushes a second
	p50, p99, p999 []float64 // microseconds
}

// BenchmarkCost is the processor time that a push and its answer take of two
// proxies, one on each host, user and system, beside a relay that only splices and
// haproxy, with the rate and latency of pushes that are waited for. All ways
// are there at once and are measured by turns; the figures are medians of the
// rounds. It writes tables in markdown to cost.md of the folder that
// PSIDECAR_EVAL_OUT names, or logs them.
func BenchmarkCost(b *testing.B) {
	require.Program(b, "haproxy")
	n := hoststest.New(b, hosts.Config{Hosts: 2})
	all, bin := costWays(), hoststest.BuildJob(b, "cmd/psidecar")
	for i, w := range all {
		w.bin, w.hosts, w.port = bin, n.Hosts(), firstPort+i*portsOfWay
		w.open(b, w)
		w.startJob(b)
	}
	cells := map[string]*cell{}
	for b.Loop() {
		for round := range costRounds + 1 {
			for _, size := range costSizes {
				for _, inFlight := range costInFlight {
					for _, w := range all {
						measure(b, cells, cellName(w, size, inFlight), w, costOrder{size, inFlight, costFor}, round > 0)
					}
				}
			}
			setRates(b, n, costSlowRate)
			for _, w := range all {
				measure(b, cells, slowName(w), w, costOrder{costSlowSize, 1, costFor}, round > 0)
			}
			setRates(b, n, 0)
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, w := range all[1:] {
		b.ReportMetric(median(cells[cellName(w, 10_000, 1)].cpu), w.name+"-us/10kB")
	}
	text := costTables(all, cells)
	if dir := os.Getenv("PSIDECAR_EVAL_OUT"); dir != "" {
		require.NoError(b, os.WriteFile(filepath.Join(dir, "cost.md"), []byte(text), 0o644))
	}
	b.Log("\n" + text)
}

func cellName(w *costWay, size, inFlight int) string { return fmt.Sprint(w.name, size, inFlight) }

func slowName(w *costWay) string { return w.name + " slow" }

func setRates(b *testing.B, n *hosts.Net, bits uint64) {
	for _, h := range n.Hosts() {
		require.NoError(b, h.SetRate(bits))
	}
}

// measure has a way's worker push once, and keeps what came of it unless that was
// to warm up.
func measure(b *testing.B, cells map[string]*cell, name string, w *costWay, o costOrder, keep bool) {
	before := w.used(b)
	var r costRun
	w.worker.AskJSON(o, &r)
	used := w.used(b) - before
	if !keep {
		return
	}
	c := cells[name]
	if c == nil {
		c = new(cell)
		cells[name] = c
	}
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	c.cpu = append(c.cpu, micros(used)/float64(r.Pushes))
	c.rate = append(c.rate, float64(r.Pushes)/r.Took.Seconds())
	c.p50, c.p99, c.p999 = append(c.p50, micros(r.P50)), append(c.p99, micros(r.P99)), append(c.p999, micros(r.P999))
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// costTables writes what was measured.
func costTables(all []*costWay, cells map[string]*cell) string {
	var text strings.Builder
	head := func(title string, columns ...string) {
		fmt.Fprintf(&text, "\n%s\n\n| |%s\n| --- |%s\n", title, row(columns), strings.Repeat(" --- |", len(columns)))
	}
	var sizes []string
	for _, s := range costSizes {
		sizes = append(sizes, sizeName(s))
	}
	for _, inFlight := range costInFlight {
		head(fmt.Sprintf("CPU time of both proxies per push and answer, µs (s per GB), %d in flight", inFlight), sizes...)
		for _, w := range all[1:] {
			var columns []string
			for _, s := range costSizes {
				us := median(cells[cellName(w, s, inFlight)].cpu)
				columns = append(columns, fmt.Sprintf("%.0f (%s)", us, digits(us*1e3/float64(s))))
			}
			fmt.Fprintf(&text, "| %s |%s\n", w, row(columns))
		}
	}
	slow := fmt.Sprintf("CPU time of both proxies per push of %s and its answer on links of %d Mbit/s, 1 in flight", sizeName(costSlowSize), int(costSlowRate/1e6))
	head(slow, "µs", "p50 µs")
	for _, w := range all[1:] {
		c := cells[slowName(w)]
		fmt.Fprintf(&text, "| %s |%s\n", w, row([]string{fmt.Sprintf("%.0f", median(c.cpu)), fmt.Sprintf("%.0f", median(c.p50))}))
	}
	head("Synchronous pushes of "+sizes[0], "pushes/s", "p50 µs", "p99 µs", "p99.9 µs")
	for _, w := range all {
		c := cells[cellName(w, costSizes[0], 1)]
		var columns []string
		for _, v := range [][]float64{c.rate, c.p50, c.p99, c.p999} {
			columns = append(columns, fmt.Sprintf("%.0f", median(v)))
		}
		fmt.Fprintf(&text, "| %s |%s\n", w, row(columns))
	}
	return text.String()
}

func row(columns []string) string { return " " + strings.Join(columns, " | ") + " |" }

func sizeName(size int) string {
	switch {
	case size%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", size>>20)
	case size >= 1000:
		return fmt.Sprintf("%d kB", size/1000)
	}
	return fmt.Sprintf("%d B", size)
}

// digits is a number with two that count.
func digits(v float64) string {
	switch {
	case v >= 10:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
