package page

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// lived is a fleet whose job has a past, and that has other jobs beside it.
type lived struct {
	fleet
	began time.Time
	jobs  []Job // more of them
	empty bool
}

func newLived(more ...Job) lived {
	return lived{fleet: fleet{workers: 8, servers: 4}, began: time.Now().Add(-time.Hour).Truncate(time.Second), jobs: more}
}

func (l lived) Jobs() []Job {
	if l.empty {
		return nil
	}
	own := l.fleet.Jobs()[0]
	own.State = Running
	own.Measures = []measure.Line{
		{Measure: measure.Observe, State: measure.On, On: 16, Connections: 16, Setting: "keys of one in 4 requests"},
		{Measure: measure.Carry, State: measure.Part, On: 12, Connections: 16, Not: []measure.Gap{{Reason: "no_proxy_there", Connections: 4, Why: "no psidecar answers at the mesh port of host-3", Do: "start psidecar up there"}}},
		{Measure: measure.Threshold, State: measure.Off, Connections: 16, Not: []measure.Gap{{Reason: measure.NotSet, Why: "not enabled", Do: "--threshold, or psidecar plan codecs set"}}},
	}
	return append([]Job{own}, l.jobs...)
}

// Heatmap is half as much of a stretch of time, and by time a row a minute.
func (l lived) Heatmap(job string, q HeatmapQuery) (Heatmap, error) {
	h, err := l.fleet.Heatmap(job, q)
	if q.Range != (Range{}) {
		for _, row := range h.Counts {
			for i := range row {
				row[i] /= 2
			}
		}
	}
	if q.Rows > 0 {
		h.Workers, h.Times = nil, RowsOf(l.began, l.began.Add(time.Hour), len(h.Counts))
	}
	return h, err
}

func (l lived) Traffic(job string, r Range) (Traffic, error) {
	t, err := l.fleet.Traffic(job, r)
	if !r.From.IsZero() {
		t.TotalBytes = uint64(r.To.Sub(r.From).Seconds())
	}
	return t, err
}

// History is an hour in which the job becomes twice as fast in the middle.
func (l lived) History(job string, q HistoryQuery) (History, error) {
	var log history.Log
	for at := l.began; at.Before(l.began.Add(time.Hour)); at = at.Add(history.Every) {
		faster := 1.0
		if at.Sub(l.began) >= 30*time.Minute {
			faster = 2
		}
		wave := faster * (1 + 0.1*math.Sin(at.Sub(l.began).Minutes()))
		s := history.Sums{Steps: 60 * wave, Bytes: 1.5e9 * wave, LeftHost: 1e9 * wave, Busiest: 5e8, Mean: 3e8 * wave / faster,
			Micros: []uint64{uint64(400 / faster), 3100}, Counts: []uint64{970, 30},
			Host: history.Host{CPU: 0.06 * wave, Kernel: 0.02, Carries: true, JobBytes: 8e8 * wave, FarBytes: 3e8}}
		if job == "" {
			s = history.Sums{Host: s.Host}
		}
		if n := len(q.Workers); n > 0 { // each as fast, with its share of the bytes
			s.Bytes *= float64(n) / float64(l.workers)
		}
		log.Add(job, history.Point{From: at, To: at.Add(history.Every), Sums: s})
	}
	h := NewHistory(job, q, log.Of(job, q.From, q.To))
	h.Events = []history.Event{{At: l.began.Add(30 * time.Minute), What: "threshold 0.99 on"}, {At: l.began.Add(45 * time.Minute), What: "stalled"}, {At: l.began.Add(46 * time.Minute), What: "goes on"}}
	return h, nil
}

func openLived(t testing.TB, l lived) context.Context {
	t.Helper()
	ctx := openPageWith(t, l, Options{History: l.History})
	do(t, ctx, "stop refreshing", chromedp.Click("#live"), waitDrawn(2))
	return ctx
}

// look evaluates an expression that is text.
func look(t testing.TB, ctx context.Context, expression string) string {
	t.Helper()
	return ask(t, ctx, chromedp.Evaluate[string](expression))
}

// until waits for an expression to be true.
func until(t testing.TB, ctx context.Context, what, expression string) {
	t.Helper()
	do(t, ctx, what, poll(expression))
}

// turn chooses a value of a list.
func turn(t testing.TB, ctx context.Context, id, value string) {
	t.Helper()
	before := drawn(t, ctx)
	do(t, ctx, "choose "+value+" of "+id, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(
		`(() => { const s = document.getElementById(%q); s.value = %q; s.dispatchEvent(new Event("change")); return 0; })()`, id, value)), waitDrawn(before+1))
}

// drag draws the pointer over part of an element, from one share of its width to
// another.
func drag(t testing.TB, ctx context.Context, selector string, from, to float64) {
	t.Helper()
	rect := ask(t, ctx, chromedp.Evaluate[struct{ X, Y, Width, Height float64 }](fmt.Sprintf(
		`(() => { const e = document.querySelector(%q); e.scrollIntoView({block: "center"}); const {x, y, width, height} = e.getBoundingClientRect(); return {X: x, Y: y, Width: width, Height: height}; })()`, selector)))
	y := rect.Y + rect.Height/2
	at := func(share float64) float64 { return rect.X + share*rect.Width }
	do(t, ctx, "drag over "+selector,
		chromedp.MouseEvent(chromedp.MouseMoved, at(from), y),
		chromedp.MouseEvent(chromedp.MousePressed, at(from), y, chromedp.ButtonLeft),
		chromedp.MouseEvent(chromedp.MouseMoved, at((from+to)/2), y, chromedp.ButtonLeft),
		chromedp.MouseEvent(chromedp.MouseMoved, at(to), y, chromedp.ButtonLeft),
		chromedp.MouseEvent(chromedp.MouseReleased, at(to), y, chromedp.ButtonLeft))
}

// viewed returns a parameter of the view in the address.
func viewed(t testing.TB, ctx context.Context, name string) string {
	t.Helper()
	return look(t, ctx, fmt.Sprintf(`new URLSearchParams(location.hash.slice(1)).get(%q) ?? ""`, name))
}

// Dragging over a curve sets the time of all panels, in the address too; a double
// click leaves it.
func TestBrush(t *testing.T) {
	l := newLived()
	ctx := openLived(t, l)
	before := drawn(t, ctx)
	drag(t, ctx, "#chart-steps .u-over", 0.5, 0.75)
	do(t, ctx, "drawn", waitDrawn(before+1))
	from, _ := strconv.ParseFloat(viewed(t, ctx, "from"), 64)
	to, _ := strconv.ParseFloat(viewed(t, ctx, "to"), 64)
	middle, end := float64(l.began.Add(30*time.Minute).Unix()), float64(l.began.Add(45*time.Minute).Unix())
	if math.Abs(from-middle) > 90 || math.Abs(to-end) > 90 {
		t.Errorf("from %v to %v were chosen, want about %v to %v", from, to, middle, end)
	}
	asked := look(t, ctx, `performance.getEntriesByType("resource").map((e) => e.name).filter((n) => n.includes("from=`+strconv.Itoa(int(from))+`")).map((n) => n.replace(/.*v1\/(\w+).*/, "$1")).sort().join()`)
	if asked != "heatmap,servers,traffic" {
		t.Errorf("panels that asked for the time: %s", asked)
	}
	if got := look(t, ctx, `document.getElementById("range").selectedOptions[0].text`); got != "custom" {
		t.Errorf("the list of times says %q", got)
	}
	before = drawn(t, ctx)
	do(t, ctx, "leave", chromedp.Evaluate[chromedp.Void](`document.querySelector("#chart-bytes .u-over").dispatchEvent(new MouseEvent("dblclick", {bubbles: true})); 0`), waitDrawn(before+1))
	if got := viewed(t, ctx, "from"); got != "" {
		t.Errorf("after a double click the time still begins at %s", got)
	}
}

// A click on a title sorts by it, a second one the other way; the address keeps it.
func TestSort(t *testing.T) {
	ctx := openLived(t, newLived())
	first := func() string {
		return look(t, ctx, `[...document.querySelectorAll("#servers tbody tr")].map((r) => r.cells[0].textContent).join()`)
	}
	click := func(title string) {
		t.Helper()
		before := drawn(t, ctx)
		do(t, ctx, "sort by "+title, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(
			`[...document.querySelectorAll("#servers .sort")].find((b) => b.textContent.startsWith(%q)).click(); 0`, title)), waitDrawn(before+1))
	}
	if got := first(); got != "server-3,server-2,server-1,server-0" {
		t.Errorf("at first: %s, want the busiest first", got)
	}
	click("server")
	if got := first(); got != "server-0,server-1,server-2,server-3" {
		t.Errorf("by name: %s", got)
	}
	click("server")
	if got := first(); got != "server-3,server-2,server-1,server-0" {
		t.Errorf("by name, backwards: %s", got)
	}
	click("share of bytes")
	if got, sort := first(), viewed(t, ctx, "sort"); got != "server-3,server-2,server-1,server-0" || sort != "servers~share of bytes~down" {
		t.Errorf("by share: %s, %q", got, sort)
	}
	if got := look(t, ctx, `document.querySelector("#servers th[aria-sort=descending]").textContent`); !strings.HasPrefix(got, "share of bytes") {
		t.Errorf("%q is said to be sorted by", got)
	}
}

// Chosen workers and servers are shown alone, in all panels.
func TestSelect(t *testing.T) {
	ctx := openLived(t, newLived())
	tick := func(list, name string) {
		t.Helper()
		before := drawn(t, ctx)
		do(t, ctx, "tick "+name, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(
			`document.querySelector("#%s input[name='%s']").click(); 0`, list, name)), waitDrawn(before+1))
	}
	tick("workers-choice", "worker-2")
	tick("workers-choice", "worker-5")
	tick("servers-choice", "server-1")
	for expression, want := range map[string]string{
		`[...document.querySelectorAll("#workers tbody tr")].map((r) => r.cells[0].textContent).join()`: "worker-2,worker-5",
		`[...document.querySelectorAll("#servers tbody tr")].map((r) => r.cells[0].textContent).join()`: "server-1",
		`document.querySelector("#shown").textContent.split(" x")[0].slice(0, 9)`:                       "2 workers",
		`document.querySelector("#workers-choice summary").textContent`:                                 "Workers: 2 of 8",
		`new URLSearchParams(location.hash.slice(1)).get("workers")`:                                    "worker-2,worker-5",
	} {
		if got := look(t, ctx, expression); got != want {
			t.Errorf("%s: %q, want %q", expression, got, want)
		}
	}
	if got := look(t, ctx, `document.querySelector("#curves-title").textContent`); got != "The last hour of worker-2, worker-5, server-1" {
		t.Errorf("the curves are called %q", got)
	}
	if got := look(t, ctx, `String(document.querySelector("#curves-note").hidden) + document.querySelector("#chart-bytes figcaption").textContent`); got != "falseBytes/s all" {
		t.Errorf("the curves say of what they do not know: %q", got)
	}
	if asked := look(t, ctx, `performance.getEntriesByType("resource").map((e) => decodeURIComponent(e.name)).filter((n) => n.includes("/history?")).at(-1)`); !strings.Contains(asked, "workers=worker-2,worker-5&servers=server-1") {
		t.Errorf("the curves' question: %q", asked)
	}
	turn(t, ctx, "by", "time")
	if asked := look(t, ctx, `performance.getEntriesByType("resource").map((e) => decodeURIComponent(e.name)).find((n) => n.includes("by=time")) ?? ""`); !strings.Contains(asked, "workers=worker-2,worker-5") {
		t.Errorf("by time, of the chosen workers: asked %q", asked)
	}
	if got := look(t, ctx, `document.querySelector("#heat-title").textContent`); got != "Accesses: time × keys" {
		t.Errorf("the heatmap is called %q", got)
	}
}

// Two times, two jobs and two workers are shown side by side, in one scale.
func TestCompare(t *testing.T) {
	other := fleet{workers: 8, servers: 4}.Jobs()[0]
	other.Name, other.State = "198.18.0.9:9000", Over
	l := newLived(other)
	ctx := openLived(t, l)
	cell := func(row, column int) string {
		t.Helper()
		return look(t, ctx, fmt.Sprintf(`document.querySelector("#figures tbody").rows[%d].cells[%d].textContent`, row, column))
	}
	// The second half of the hour, beside the first.
	before := drawn(t, ctx)
	do(t, ctx, "choose", chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`location.hash = "from=%d&to=%d&beside=time"; 0`,
		l.began.Add(40*time.Minute).Unix(), l.began.Add(50*time.Minute).Unix())), waitDrawn(before+1))
	if look(t, ctx, `String(document.getElementById("sides").hidden)`) != "true" {
		t.Error("there are two sides before the second is chosen")
	}
	do(t, ctx, "drag sets the other time", chromedp.SetValue("#brush", "beside"))
	before = drawn(t, ctx)
	drag(t, ctx, "#chart-bytes .u-over", 0.1, 0.25)
	do(t, ctx, "drawn", waitDrawn(before+1))
	if viewed(t, ctx, "besidefrom") == "" || viewed(t, ctx, "from") != strconv.FormatInt(l.began.Add(40*time.Minute).Unix(), 10) {
		t.Errorf("after dragging: %s", look(t, ctx, "location.hash"))
	}
	if steps, diff := cell(0, 0), cell(0, 3); steps != "steps/s" || !strings.HasPrefix(diff, "-4") && !strings.HasPrefix(diff, "-5") {
		t.Errorf("%s differ by %s, want about -50%%", steps, diff)
	}
	screenshot(t, ctx, "compare-times")
	turn(t, ctx, "beside", "job")
	turn(t, ctx, "besidejob", other.Name)
	if a, b := look(t, ctx, `document.querySelector("#side-a-title").textContent`), look(t, ctx, `document.querySelector("#side-b-title").textContent`); a != fleetJob || b != other.Name {
		t.Errorf("%q beside %q", a, b)
	}
	turn(t, ctx, "beside", "worker")
	turn(t, ctx, "a", "worker-1")
	turn(t, ctx, "b", "worker-3")
	if a, b := look(t, ctx, `document.querySelector("#figures thead").rows[0].cells[1].textContent`), cell(0, 2); !strings.HasPrefix(a, "worker-1") || b != "12.5" {
		t.Errorf("%q has beside it %s steps/s", a, b)
	}
}

// Panels can be saved: figures as CSV, pictures as PNG.
func TestExport(t *testing.T) {
	ctx := openLived(t, newLived())
	do(t, ctx, "catch files", chromedp.Evaluate[chromedp.Void](`
		window.files = {};
		URL.createObjectURL = (blob) => { window.blob = blob; return "data:,"; };
		HTMLAnchorElement.prototype.click = function () { window.blob.arrayBuffer().then((b) => (window.files[this.download] = new Uint8Array(b))); };
		0`))
	for _, file := range []struct{ button, name, begins string }{
		{`[data-csv="servers"]`, "psidecar-servers.csv", "server,share of bytes,in,out,requests,p50,p99\r\nserver-3,0.4,500000000,"},
		{`[data-csv="curves"]`, "psidecar-curves.csv", "from,to,steps steps/s,bytes all,"},
		{`[data-csv="heat"]`, "psidecar-heat.csv", ",0-72057594037927935,"},
		{`[data-csv="keys"]`, "psidecar-keys.csv", "key,accesses,pulls,pushes,bytes,home\r\n9223372036854775808,1000000,"},
		{`[data-png="heat-section"]`, "psidecar-heat.png", "\x89PNG"},
		{`[data-png="curves-section"]`, "psidecar-curves.png", "\x89PNG"},
	} {
		do(t, ctx, "keep "+file.name, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.querySelector('%s').click(); 0`, file.button)))
		until(t, ctx, file.name, fmt.Sprintf(`window.files[%q] !== undefined`, file.name))
		bytes := ask(t, ctx, chromedp.Evaluate[[]int](fmt.Sprintf(`[...window.files[%q].slice(0, 200)]`, file.name)))
		var text strings.Builder
		for _, b := range bytes {
			text.WriteByte(byte(b))
		}
		if !strings.HasPrefix(text.String(), file.begins) {
			t.Errorf("%s begins with %q, want %q", file.name, text.String(), file.begins)
		}
	}
}

// No table is cut without a cue, however wide the page is, and the page itself
// never scrolls sideways.
func TestNothingIsCutUnseen(t *testing.T) {
	ctx := openLived(t, newLived(stalled()))
	before := drawn(t, ctx)
	do(t, ctx, "compare", chromedp.Evaluate[chromedp.Void](`location.hash = "beside=worker&a=worker-1&b=worker-2"; 0`), waitDrawn(before+1))
	for _, width := range []int64{800, 1024, 1440, 2560} {
		do(t, ctx, "resize", chromedp.EmulateViewport(width, 1200))
		until(t, ctx, "the page to be laid out, and no wider", `new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(document.documentElement.scrollWidth <= innerWidth))))`)
		if cut := look(t, ctx, `[...document.querySelectorAll(".scroll")].filter((s) => s.clientWidth > 0 && (s.scrollWidth > s.clientWidth + 1 && !s.classList.contains("more-right") || s.scrollHeight > s.clientHeight + 1 && !s.classList.contains("more-below"))).map((s) => s.parentElement.id).join()`); cut != "" {
			t.Errorf("at %d pixels these tables are cut without a cue: %s", width, cut)
		}
	}
	if look(t, ctx, `String(document.querySelector("#keys .scroll").classList.contains("more-below"))`) != "true" {
		t.Error("a long table that stands beside others is as high as it is long")
	}
	do(t, ctx, "to its end", chromedp.Evaluate[chromedp.Void](`document.querySelector("#keys .scroll").scrollTop = 1e6; 0`))
	until(t, ctx, "the cue to go", `!document.querySelector("#keys .scroll").classList.contains("more-below")`)
	// The reason why a job waits comes first.
	before = drawn(t, ctx)
	do(t, ctx, "narrow", chromedp.EmulateViewport(800, 1200), chromedp.Evaluate[chromedp.Void](`location.hash = "job=198.18.0.7:9000"; 0`), waitDrawn(before+1))
	until(t, ctx, "who waits for whom to be there whole", `(({clientWidth, scrollWidth}) => clientWidth > 0 && scrollWidth <= clientWidth + 1)(document.querySelector("#stalls .scroll"))`)
	if keys := look(t, ctx, `(() => { const b = document.querySelector("#stalls .key"); return b.textContent + ", " + b.title; })()`); keys != "92233…5808 to 13835…3711, 9223372036854775808 to 13835058055282163711 (click to copy)" {
		t.Errorf("the keys that are waited for: %s", keys)
	}
}

// Without a job there is one card, which says what to do.
func TestWithoutAJob(t *testing.T) {
	l := newLived()
	l.empty = true
	ctx := openLived(t, l)
	screenshot(t, ctx, "empty")
	cards := look(t, ctx, `[...document.querySelectorAll("section")].filter((s) => s.offsetHeight > 0).map((s) => s.id).join()`)
	if cards != "empty" {
		t.Errorf("cards that are shown: %s", cards)
	}
	if text := look(t, ctx, `document.querySelector("#empty").textContent`); !strings.Contains(text, "psidecar doctor") || !strings.Contains(text, "psjob local") {
		t.Errorf("the card does not say what to do: %s", text)
	}
}

// The keyboard reaches what the pointer does: the lists close with Escape, and a
// table that is cut can be scrolled.
func TestKeyboardReachesTables(t *testing.T) {
	ctx := openLived(t, newLived())
	do(t, ctx, "narrow", chromedp.EmulateViewport(420, 900))
	do(t, ctx, "open", chromedp.Evaluate[chromedp.Void](`document.querySelector("#workers-choice").open = true; document.querySelector("#workers-choice input").focus(); 0`), chromedp.KeyEvent(kb.Escape))
	if look(t, ctx, `String(document.querySelector("#workers-choice").open)`) != "false" {
		t.Error("Escape leaves the list open")
	}
	do(t, ctx, "to the table", chromedp.Focus("#servers .scroll"))
	if !slices.Contains([]string{"0"}, look(t, ctx, `String(document.activeElement.scrollLeft)`)) {
		t.Fatal("the table is scrolled already")
	}
	do(t, ctx, "scroll", chromedp.KeyEvent(kb.End), chromedp.KeyEvent(kb.ArrowRight))
	until(t, ctx, "the table to scroll", `document.querySelector("#servers .scroll").scrollLeft > 0`)
	until(t, ctx, "the cue on the left", `document.querySelector("#servers .scroll").classList.contains("more-left")`)
}

// A job of which no node is known yet is drawn, with what is known.
func TestJobWithoutNodes(t *testing.T) {
	ctx := visit(t, fleet{}, Options{})
	until(t, ctx, "an answer or a fault", `document.getElementById("status").textContent.trim() !== "Loading …"`)
	if got := look(t, ctx, `document.getElementById("status").textContent`); strings.Contains(got, "failed") || strings.Contains(got, "No response") {
		t.Errorf("a job without nodes: %s", got)
	}
	if got := look(t, ctx, `document.getElementById("workerchoice")?.hidden + " " + document.getElementById("cost").childElementCount`); strings.HasPrefix(got, "false") {
		t.Errorf("workers to choose from where there are none: %s", got)
	}
}
