package page

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// someCodecs is a trial on two hosts, one of which has not reported.
func someCodecs(job string) (Codecs, error) {
	c := Codecs{Job: job, Tried: true, Rules: `[{"threshold":0.99}]`, Hosts: []CodecHost{
		{Host: "host-0", Current: true, Reported: true}, {Host: "host-1", Refused: "it has none"},
	}}
	a := &CodecAdvice{Seconds: 10, Hosts: 1, Pushes: 400, PushBytes: 4e6, PullBytes: 2e6}
	for _, r := range []struct {
		name          string
		pushes, pulls float64
		waits         float64
	}{
		{"compact", 0.93, 0.9, 0}, {"unchanged", 0.93, 0.62, 0}, {"threshold 0.75", 0.3, 0.9, 0.7}, {"threshold 0.9", 0.12, 0.9, 1.9},
		{"threshold 0.95", 0.065, 0.9, 3.1}, {"threshold 0.98", 0.026, 0.9, 5.6}, {"threshold 0.99", 0.0135, 0.9, 8.3}, {"threshold 0.995", 0.007, 0.9, 12.1},
		{"threshold 0.99, quantize 8", 0.008, 0.9, 8.4}, {"quantize 8", 0.26, 0.9, 0}, {"quantize 4", 0.14, 0.9, 0}, {"slim 0.3,0.15", 0.33, 0.37, 0},
	} {
		row := CodecRow{Codec: r.name, PushBytes: uint64(r.pushes * 4e6), PullBytes: uint64(r.pulls * 2e6), Waits: r.waits}
		row.Saved = 1 - float64(row.PushBytes+row.PullBytes)/6e6
		a.Codecs = append(a.Codecs, row)
	}
	c.Advice = a
	return c, nil
}

func TestCodecsInterface(t *testing.T) {
	h := Handler(fleet{1, 1}, Options{Codecs: someCodecs})
	code, body := get(t, h, "/api/v1/codecs?job="+fleetJob)
	var c Codecs
	if err := json.Unmarshal([]byte(body), &c); code != http.StatusOK || err != nil || c.Job != fleetJob || len(c.Advice.Codecs) != 12 {
		t.Errorf("%d, %s, %v", code, body, err)
	}
	if code, _ := get(t, Handler(fleet{1, 1}, Options{}), "/api/v1/codecs?job="+fleetJob); code != http.StatusNotFound {
		t.Errorf("an agent's: %d", code)
	}
}

// The page shows the numbers of the trial, as table and plot.
func TestPageShowsCodecs(t *testing.T) {
	ctx := openPageWith(t, reporting{fleet{workers: 4, servers: 2}}, Options{Codecs: someCodecs})
	rows := ask(t, ctx, chromedp.Evaluate[[][]string](
		`[...document.querySelectorAll("#codec-advice tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent))`))
	want := []string{"threshold 0.99", "1.35%", "90.0%", "69.1%", "8.3", "psidecar plan codecs set --job " + fleetJob + " --threshold 0.99 --act" + "copy"}
	if len(rows) != 12 || !slices.Equal(rows[6], want) {
		t.Errorf("the page shows %q, want 12 rows, of them %q", rows, want)
	}
	names := ask(t, ctx, chromedp.Evaluate[[]string](`[...document.querySelectorAll(".codec-plot .name")].map((e) => e.textContent)`))
	if len(names) != 12 || !slices.Contains(names, "slim 0.3,0.15") {
		t.Errorf("the plot names %q", names)
	}
	overlapping := ask(t, ctx, chromedp.Evaluate[[]string](`[...document.querySelectorAll(".codec-plot .name")].flatMap((a, i, all) =>
		all.slice(i + 1).filter((b) => { const [p, q] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
			return p.left < q.right && q.left < p.right && p.top + 3 < q.bottom - 3 && q.top + 3 < p.bottom - 3 }).map((b) => a.textContent + " and " + b.textContent))`))
	if len(overlapping) > 0 {
		t.Errorf("names lie over each other: %q", overlapping)
	}
	text := ask(t, ctx, chromedp.Text("#codecs"))
	for _, part := range []string{`[{"threshold":0.99}]`, "2 proxies follow; not up to date: host-1 (it has none)",
		"Tried for 10 s on 1 host: 4.00 MB of pushes (400), 2.00 MB of pulls. host-1 has not reported."} {
		if !strings.Contains(text, part) {
			t.Errorf("the page does not say %q: %s", part, text)
		}
	}
	if text := ask(t, ctx, chromedp.Text("#try code")); text != "psidecar plan codecs try" {
		t.Errorf("the page says %q is the way to try codecs", text)
	}
	screenshot(t, ctx, "codecs")
}

// Without proxies or a trial the page says so and what to do.
func TestPageWithoutAdvice(t *testing.T) {
	for name, c := range map[string]struct {
		codecs Codecs
		want   string
	}{
		"nobody follows": {codecs: Codecs{}, want: "Start psidecar up"},
		"never tried":    {codecs: Codecs{Hosts: []CodecHost{{Host: "host-0", Current: true}}}, want: "No results yet"},
		"idle":           {codecs: Codecs{Tried: true, Hosts: []CodecHost{{Host: "host-0", Current: true, Reported: true}}}, want: "No traffic of this job passed"},
		"under way":      {codecs: Codecs{Tried: true, LeftSeconds: 7, Hosts: []CodecHost{{Host: "host-0", Current: true}}}, want: "7 s left"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := openPageWith(t, reporting{fleet{workers: 2, servers: 1}}, Options{Codecs: func(string) (Codecs, error) { return c.codecs, nil }})
			if text := ask(t, ctx, chromedp.Text("#codecs")); !strings.Contains(text, c.want) {
				t.Errorf("the page says %q, want %q", text, c.want)
			}
			if !ask(t, ctx, chromedp.Evaluate[bool](`document.getElementById("codec-advice") === null`)) {
				t.Error("the page shows advice")
			}
		})
	}
}
