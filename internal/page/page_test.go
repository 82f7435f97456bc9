package page

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/psidecar/psidecar/test/require"
)

// openPage opens a page about the state.
func openPage(t testing.TB, state State) context.Context {
	t.Helper()
	return openPageWith(t, state, Options{})
}

// openPageWith opens a page with options.
func openPageWith(t testing.TB, state State, opts Options) context.Context {
	t.Helper()
	ctx := visit(t, state, opts)
	do(t, ctx, "draw the page", waitDrawn(1))
	return ctx
}

// visit loads a page; it may not have drawn anything yet.
func visit(t testing.TB, state State, opts Options) context.Context {
	t.Helper()
	shared := browser(t)
	server := httptest.NewServer(Handler(state, opts))
	t.Cleanup(server.Close)
	ctx, cancel := chromedp.NewContext(shared, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	do(t, ctx, "open the page", chromedp.EmulateViewport(1400, 1600), chromedp.Navigate(server.URL))
	return ctx
}

// patience is how long the page may take on a busy machine.
const patience = 3 * time.Minute

// poll waits until an expression is true.
func poll(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(patience))
}

// waitDrawn waits until the page has drawn n times since it was opened.
func waitDrawn(n int) chromedp.Action[chromedp.Void] {
	return poll(fmt.Sprintf(`performance.getEntriesByName("drawn").length >= %d`, n))
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
	answer := require.Value(chromedp.Run(ctx, question))(t)
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

func TestPageShowsWhatTheInterfaceSays(t *testing.T) {
	state := fleet{workers: 8, servers: 4}
	ctx := openPage(t, state)
	do(t, ctx, "stop refreshing", chromedp.Click("#live"))
	rect := ask(t, ctx, chromedp.Evaluate[struct {
		X, Y, Width, Height float64
	}](`(({x, y, width, height}) => ({X: x, Y: y, Width: width, Height: height}))(document.querySelector("#heat .u-over").getBoundingClientRect())`))
	whole := require.Value(state.Heatmap(fleetJob, HeatmapQuery{Blocks: 256, Last: 1<<64 - 1, Measure: Accesses}))(t)
	for _, cell := range []struct{ worker, block int }{{0, 0}, {3, 96}, {7, 255}, {5, 17}} {
		x := rect.X + (float64(cell.block)+0.5)*rect.Width/256
		y := rect.Y + (float64(cell.worker)+0.5)*rect.Height/8
		do(t, ctx, "hover", chromedp.MouseEvent(chromedp.MouseMoved, x, y))
		got := readout(t, ctx, "heat")
		if want := whole.Workers[cell.worker] + ","; !strings.HasPrefix(got, want) {
			t.Errorf("over worker %d, block %d: %q, want it to begin with %q", cell.worker, cell.block, got, want)
		}
		key := whole.Blocks[cell.block].FirstText
		if len(key) > 12 {
			key = key[:5] + "…" + key[len(key)-4:]
		}
		if !strings.Contains(got, " keys "+key+" to ") {
			t.Errorf("over block %d: %q, want first key %s", cell.block, got, key)
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

// slowState has nothing lost, and says of its jobs only when it is let.
type slowState struct {
	lived
	let chan struct{}
}

func (s slowState) Jobs() []Job {
	<-s.let
	return s.lived.Jobs()
}

func (s slowState) Agent() Agent {
	a := s.lived.Agent()
	a.Counters = []Counter{{Reason: "segments", Class: "seen", Events: 7, Bytes: 70}, {Reason: "ring_full", Class: "lost"}}
	return a
}

// Before there is an answer there are no empty cards, and what is not counted at all
// takes no row.
func TestPageBeforeTheFirstAnswer(t *testing.T) {
	state := slowState{newLived(), make(chan struct{})}
	ctx := visit(t, state, Options{History: state.History})
	for question, want := range map[string]string{
		`getComputedStyle(document.querySelector("main")).visibility`: "hidden",
		`document.querySelector("#status").textContent`:               "Loading …",
	} {
		if got := look(t, ctx, question); got != want {
			t.Errorf("before the first answer %s is %q, want %q", question, got, want)
		}
	}
	close(state.let)
	do(t, ctx, "draw", waitDrawn(1))
	if got := look(t, ctx, `getComputedStyle(document.querySelector("main")).visibility + " " + document.querySelector("#counters").textContent`); !strings.HasPrefix(got, "visible Nothing was lost.") || !strings.Contains(got, "segments") || strings.Contains(got, "ring_full") {
		t.Errorf("then: %q", got)
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

// lateState answers questions for pulls only when it is let.
type lateState struct {
	fleet
	asked, let chan struct{}
}

func (l lateState) Heatmap(job string, q HeatmapQuery) (Heatmap, error) {
	if q.Measure == Pulls {
		close(l.asked)
		<-l.let
	}
	return l.fleet.Heatmap(job, q)
}

// An answer that comes after that to a newer question is not shown.
func TestPageShowsTheNewest(t *testing.T) {
	state := lateState{fleet{workers: 8, servers: 4}, make(chan struct{}), make(chan struct{})}
	ctx := openPage(t, state)
	do(t, ctx, "stop refreshing", chromedp.Click("#live"), waitDrawn(2))
	view := func(measure string) chromedp.Action[chromedp.Void] {
		return poll(fmt.Sprintf(`(location.hash = "#measure=%s", true)`, measure))
	}
	do(t, ctx, "ask for pulls", view("pulls"))
	<-state.asked
	do(t, ctx, "ask for bytes", view("bytes"), waitDrawn(3))
	close(state.let)
	do(t, ctx, "both are answered", poll(
		`performance.getEntriesByType("resource").some((e) => e.name.includes("measure=pulls") && e.responseEnd > 0)`))
	do(t, ctx, "go to a block", chromedp.Focus("#heat"), chromedp.KeyEvent(kb.ArrowRight))
	if got := readout(t, ctx, "heat"); !strings.Contains(got, "B") || strings.Contains(got, "pulls") {
		t.Errorf("asked for bytes last, the page shows %q", got)
	}
	if n := drawn(t, ctx); n != 3 {
		t.Errorf("the page has drawn %d times, want 3", n)
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
