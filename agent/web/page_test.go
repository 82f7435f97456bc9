package web

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/psidecar/psidecar/test/require"
)

// fleet is a State of one job with many workers, whose counts follow from the
// worker's number and the key, at any zoom.
type fleet struct{ workers, servers int }

const fleetJob = "198.18.0.1:9000"

func (f fleet) names(role string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", role, i)
	}
	return names
}

func (f fleet) Jobs() []Job {
	return []Job{{
		Name: fleetJob, Dialect: "dmlc", Servers: f.servers, Workers: f.workers, Accesses: 1 << 30, DistinctKeys: 5e6,
		Bytes: 3 << 30, LeftHostBytes: 2 << 30, StepsPerSecond: 12.5, BytesPerSecond: 3e8, SampledOneIn: 1,
		Exact: true, Latency: Latency{Count: 100, P50: 0.0004, P99: 0.0031}, Connections: Connections{Synced: 16},
	}}
}

func (f fleet) Heatmap(job string, q HeatmapQuery) (Heatmap, error) {
	h := Heatmap{Job: job, Workers: f.names("worker", f.workers), Measure: q.Measure, Exact: true, SampledOneIn: 1}
	width := uint64(q.Last-q.First)/uint64(q.Blocks) + 1
	for b := range uint64(q.Blocks) {
		first := uint64(q.First) + b*width
		h.Blocks = append(h.Blocks, NewBlock(first, min(first+width-1, uint64(q.Last)), 1000, false))
	}
	for w := range f.workers {
		row := make([]uint64, q.Blocks)
		for b := range row {
			row[b] = f.count(w, h.Blocks[b].First)
		}
		h.Counts = append(h.Counts, row)
	}
	return h, nil
}

// count has a hot stripe for every worker and a slope over the keys.
func (f fleet) count(worker int, key Key) uint64 {
	stripe := uint64(worker) * (1 << 63 / uint64(f.workers) * 2)
	distance := max(uint64(key), stripe) - min(uint64(key), stripe)
	return 1_000_000_000/(1+distance>>52) + uint64(key)>>60
}

func (f fleet) Traffic(job string, r Range) (Traffic, error) {
	t := Traffic{Job: job, Workers: f.names("worker", f.workers), Servers: f.names("server", f.servers), Range: r}
	for w := range f.workers {
		row := make([]uint64, f.servers)
		for s := range row {
			row[s] = uint64((w + 1) * (s + 1) * 1000)
		}
		t.ToServers, t.ToWorkers, t.Requests = append(t.ToServers, row), append(t.ToWorkers, row), append(t.Requests, row)
	}
	return t, nil
}

func (f fleet) Keys(job string, n int) (Keys, error) {
	k := Keys{Job: job, Sketch: Sketch{Exact: true, DistinctKeys: 5e6, ExactKeys: 5e6, MemoryBytes: 90 << 20}}
	for i := range n {
		key := Key(1)<<63 + Key(i)
		k.Hottest = append(k.Hottest, HotKey{Key: key, Text: key.Text(), Accesses: uint64(1e6 / (i + 1)), Server: "server-0"})
	}
	for i := uint64(1); i <= 5_000_000; i *= 2 {
		k.Skew = append(k.Skew, SkewPoint{Keys: i, Accesses: i * 100 / (1 + i/5000)})
	}
	return k, nil
}

func (f fleet) Servers(job string, _ Range) (Servers, error) {
	s := Servers{Job: job}
	for i, name := range f.names("server", f.servers) {
		s.Servers = append(s.Servers, ServerLoad{Name: name, Requests: 1000, BytesIn: 5e8, Share: float64(i+1) / float64(f.servers*(f.servers+1)/2), Latency: Latency{Count: 1000, P50: 0.0003, P99: 0.002}})
	}
	for i, name := range f.names("worker", min(f.workers, 8)) {
		s.Workers = append(s.Workers, WorkerLoad{Name: name, Requests: 1000, StepsPerSecond: 12.5, Straggler: i == 3})
	}
	return s, nil
}

func (f fleet) Agent() Agent {
	return Agent{
		Version: "test", Host: "host-0", CPUPercent: 1.3, KernelPercent: 0.4, MemoryBytes: 120 << 20,
		Programs: []Program{{Name: "egress", Runs: 123456, Seconds: 0.04, NanosPerRun: 324}},
		Sampling: Sampling{OneIn: 4, Window: 8, Adaptive: true, BudgetPercent: 5},
		Counters: []Counter{{Reason: "ring_full", Class: "lost", Help: "the ring buffer was full", Events: 2, Bytes: 640}},
	}
}

func (f fleet) Ready() error { return nil }

// openPage starts a browser on a page about the state.
func openPage(t testing.TB, state State) context.Context {
	t.Helper()
	return openPageWith(t, state, Options{})
}

// openPageWith starts a browser on a page with options.
func openPageWith(t testing.TB, state State, opts Options) context.Context {
	t.Helper()
	chromium := require.Program(t, "chromium")
	server := httptest.NewServer(Handler(state, opts))
	t.Cleanup(server.Close)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.DisableGPU)
	alloc, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	do(t, ctx, "open the page", chromedp.EmulateViewport(1400, 1600), chromedp.Navigate(server.URL), waitDrawn(1))
	return ctx
}

// waitDrawn waits until the page has drawn n times since it was opened.
func waitDrawn(n int) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](fmt.Sprintf(`performance.getEntriesByName("drawn").length >= %d`, n))
}

// drawn returns how often the page has drawn.
func drawn(t testing.TB, ctx context.Context) int {
	t.Helper()
	return ask(t, ctx, chromedp.Evaluate[int](`performance.getEntriesByName("drawn").length`))
}

// do acts on the page; what says so in an error.
func do(t testing.TB, ctx context.Context, what string, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// ask reads something off the page.
func ask[T any](t testing.TB, ctx context.Context, question chromedp.Action[T]) T {
	t.Helper()
	answer, err := chromedp.Run(ctx, question)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// screenshot keeps a picture of the page where the test's artifacts go, and in
// the folder that PSIDECAR_SCREENSHOTS names.
func screenshot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	png := ask(t, ctx, chromedp.FullScreenshot(100))
	for _, dir := range []string{t.ArtifactDir(), os.Getenv("PSIDECAR_SCREENSHOTS")} {
		if dir == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
			t.Error(err)
		}
	}
}

func readout(t *testing.T, ctx context.Context, grid string) string {
	t.Helper()
	return ask(t, ctx, chromedp.Text("#"+grid+" + .readout"))
}

// digits keeps the digits of the first number in s that follows after.
func digits(s, after string) string {
	_, s, _ = strings.Cut(s, after)
	var out strings.Builder
	for _, r := range s {
		switch {
		case r >= '0' && r <= '9':
			out.WriteRune(r)
		case r != '\u202f':
			return out.String()
		}
	}
	return out.String()
}

func TestPageShowsWhatTheInterfaceSays(t *testing.T) {
	state := fleet{workers: 8, servers: 4}
	ctx := openPage(t, state)
	do(t, ctx, "stop refreshing", chromedp.Click("#live"))
	rect := ask(t, ctx, chromedp.Evaluate[struct {
		X, Y, Width, Height float64
	}](`(({x, y, width, height}) => ({X: x, Y: y, Width: width, Height: height}))(document.querySelector("#heat .u-over").getBoundingClientRect())`))
	whole, err := state.Heatmap(fleetJob, HeatmapQuery{Blocks: 256, Last: 1<<64 - 1, Measure: Accesses})
	if err != nil {
		t.Fatal(err)
	}
	for _, cell := range []struct{ worker, block int }{{0, 0}, {3, 96}, {7, 255}, {5, 17}} {
		x := rect.X + (float64(cell.block)+0.5)*rect.Width/256
		y := rect.Y + (float64(cell.worker)+0.5)*rect.Height/8
		do(t, ctx, "hover", chromedp.MouseEvent(chromedp.MouseMoved, x, y))
		got := readout(t, ctx, "heat")
		if want := whole.Workers[cell.worker] + ","; !strings.HasPrefix(got, want) {
			t.Errorf("over worker %d, block %d: %q, want it to begin with %q", cell.worker, cell.block, got, want)
		}
		if key := digits(got, "keys "); key != whole.Blocks[cell.block].FirstText {
			t.Errorf("over block %d: first key %q, want %s", cell.block, key, whole.Blocks[cell.block].FirstText)
		}
		checkCount(t, got, whole.Counts[cell.worker][cell.block])
	}
	screenshot(t, ctx, "light")
	do(t, ctx, "dark", chromedp.Click("#theme"))
	screenshot(t, ctx, "dark")
}

// checkCount compares a count as the page writes it, to three digits, with the
// true one.
func checkCount(t *testing.T, readout string, want uint64) {
	t.Helper()
	_, text, _ := strings.Cut(readout, "seen): ")
	fields := strings.Fields(text)
	scale := map[string]float64{"k": 1e3, "M": 1e6, "G": 1e9}
	got, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		t.Errorf("no count in %q", readout)
		return
	}
	if s, ok := scale[fields[1]]; ok {
		got *= s
	}
	if diff := got/float64(want) - 1; diff > 0.006 || diff < -0.006 {
		t.Errorf("%q: want %d", readout, want)
	}
}

func TestPageByKeyboard(t *testing.T) {
	ctx := openPage(t, fleet{workers: 8, servers: 4})
	do(t, ctx, "stop refreshing", chromedp.Click("#live"), chromedp.Focus("#heat"))
	press := func(key string, modifiers ...kb.Modifier) {
		t.Helper()
		do(t, ctx, "press "+key, chromedp.KeyEvent(key, chromedp.KeyModifiers(modifiers...)))
	}
	press(kb.ArrowRight)
	press(kb.ArrowDown)
	if got := readout(t, ctx, "heat"); !strings.HasPrefix(got, "worker-1, ") {
		t.Errorf("after Right and Down: %q, want worker-1", got)
	}
	before := drawn(t, ctx)
	press(kb.ArrowRight, kb.ModifierShift)
	press(kb.Enter)
	do(t, ctx, "zoomed", waitDrawn(before+1))
	address := chromedp.Evaluate[string](`location.hash`)
	hash := ask(t, ctx, address)
	if want := "#first=0&last=" + strconv.FormatUint(2*(1<<56)-1, 10); hash != want {
		t.Errorf("address after zooming into the first two blocks: %s, want %s", hash, want)
	}
	before = drawn(t, ctx)
	do(t, ctx, "focus", chromedp.Focus("#heat"))
	press(kb.Escape)
	do(t, ctx, "left the zoom", waitDrawn(before+1))
	if hash = ask(t, ctx, address); hash != "" && hash != "#" {
		t.Errorf("address after Escape: %q", hash)
	}
}

func TestPageAsksNobodyElse(t *testing.T) {
	ctx := openPage(t, fleet{workers: 2, servers: 1})
	origin := ask(t, ctx, chromedp.Evaluate[string](`location.origin`))
	urls := ask(t, ctx, chromedp.Evaluate[[]string](`performance.getEntriesByType("resource").map((e) => e.name)`))
	if len(urls) < 6 {
		t.Errorf("only %d requests were recorded: %v", len(urls), urls)
	}
	for _, url := range urls {
		if !strings.HasPrefix(url, origin) {
			t.Errorf("the page asked %s", url)
		}
	}
}

// BenchmarkPage draws 1,000 workers by 1,000 blocks: from the first question to
// the last panel.
func BenchmarkPage(b *testing.B) {
	ctx := openPage(b, fleet{workers: 1000, servers: 16})
	do(b, ctx, "ask for 1000 blocks", chromedp.Click("#live"), chromedp.SetValue("#blocks", "1000"),
		chromedp.Evaluate[chromedp.Void](`document.querySelector("#blocks").dispatchEvent(new Event("change")); performance.clearMeasures(); 0`))
	for n := 1; b.Loop(); n++ {
		if n > 1 {
			do(b, ctx, "refresh", chromedp.Evaluate[chromedp.Void](`dispatchEvent(new HashChangeEvent("hashchange")); 0`))
		}
		do(b, ctx, "wait", waitDrawn(n))
	}
	durations := ask(b, ctx, chromedp.Evaluate[[]float64](`performance.getEntriesByName("drawn").map((e) => e.duration).sort((a, b) => a - b)`))
	b.ReportMetric(durations[len(durations)/2], "ms/draw")
	b.ReportMetric(durations[len(durations)-1], "ms/slowest")
}
