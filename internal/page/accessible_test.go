package page

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/psidecar/psidecar/test/require"
)

// stalled is a job that waits, for the screens.
func stalled() Job {
	j := fleet{workers: 8, servers: 4}.Jobs()[0]
	j.Name, j.State, j.Cause, j.StepsPerSecond, j.BytesPerSecond = "198.18.0.7:9000", Stalled, "server1", 0, 0
	j.What = "stalled for 12 s: worker3 waits for server1, keys 9223372036854775808 to 13835058055282163711, request 4.2 MB"
	j.Stalls = []Stall{
		{Kind: "unanswered", Who: "worker3", On: "server1", Seconds: 12, Keys: "keys from 9223372036854775808 to 13835058055282163711", Bytes: 4.2e6, Why: "the server's process is stopped (SIGSTOP); its socket's window is zero"},
		{Kind: "barrier", Who: "worker2", Seconds: 11.4},
	}
	return j
}

// loadAxe has the page know axe.
func loadAxe(t *testing.T, ctx context.Context) {
	t.Helper()
	script, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	if err != nil {
		require.Missing(t, "needs axe-core (make page): %v", err)
	}
	do(t, ctx, "load axe", chromedp.Evaluate[chromedp.Void](string(script)+"; 0"))
}

// checkAccessible fails where axe finds something serious on the page as it is.
func checkAccessible(t *testing.T, ctx context.Context, what string) {
	t.Helper()
	do(t, ctx, "run axe", chromedp.Evaluate[chromedp.Void](`window.found = undefined; axe.run().then((r) => { window.found = r.violations.map((v) => v.impact + ": " + v.id + ": " + v.help + ": " + v.nodes.map((n) => n.target.join(" ")).slice(0, 4).join(", ")); }); 0`))
	until(t, ctx, "axe", `window.found !== undefined`)
	for _, v := range ask(t, ctx, chromedp.Evaluate[[]string](`window.found`)) {
		if strings.HasPrefix(v, "serious") || strings.HasPrefix(v, "critical") {
			t.Errorf("%s: %s", what, v)
		}
	}
}

// checkThemes checks what the page shows now in both of its themes, and takes
// pictures of it at all widths where those are wanted.
func checkThemes(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	for _, theme := range []string{"light", "dark"} {
		before := drawn(t, ctx)
		do(t, ctx, theme, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.documentElement.dataset.theme = %q; dispatchEvent(new HashChangeEvent("hashchange")); 0`, theme)), waitDrawn(before+1))
		checkAccessible(t, ctx, name+", "+theme)
		if os.Getenv("PSIDECAR_SCREENSHOTS") == "" {
			continue
		}
		for _, width := range []int64{390, 1440, 2560} {
			do(t, ctx, "resize", chromedp.EmulateViewport(width, 1200))
			until(t, ctx, "laid out", `new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
			screenshot(t, ctx, fmt.Sprintf("%s-%s-%d", name, theme, width))
		}
	}
}

// axe finds nothing serious, whatever the page shows, dark or light.
func TestAccessible(t *testing.T) {
	over := stalled()
	over.Name, over.State, over.What = "198.18.0.8:9000", Over, "over, last heard of 4m12s ago"
	over.Cause, over.Stalls = "", nil
	l := newLived(stalled(), over)
	ctx := openLived(t, l)
	loadAxe(t, ctx)
	for _, screen := range []struct{ name, hash string }{
		{"job", ""},
		{"stalled", "job=198.18.0.7:9000"},
		{"over", "job=198.18.0.8:9000"},
		{"beside", "beside=job&besidejob=198.18.0.8:9000&by=time&range=600"},
	} {
		before := drawn(t, ctx)
		do(t, ctx, "show "+screen.name, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`location.hash = %q; dispatchEvent(new HashChangeEvent("hashchange")); 0`, screen.hash)), waitDrawn(before+1))
		checkThemes(t, ctx, screen.name)
	}
	do(t, ctx, "open the lists", chromedp.Evaluate[chromedp.Void](`document.querySelectorAll("details").forEach((d) => (d.open = true)); 0`))
	checkAccessible(t, ctx, "with open lists")
}

// Nor where there is no job.
func TestAccessibleWithoutAJob(t *testing.T) {
	l := newLived()
	l.empty = true
	ctx := openLived(t, l)
	loadAxe(t, ctx)
	checkThemes(t, ctx, "empty")
}
