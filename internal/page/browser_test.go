package page

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/psidecar/psidecar/test/require"
)

// theBrowser is the one that all tests of the page share: each has a context of
// its own in it, with nothing of the others'. Started by the first that needs it.
var theBrowser struct {
	once  sync.Once
	ctx   context.Context
	close func()
	err   error
}

// browser returns the context of the running browser.
func browser(t testing.TB) context.Context {
	t.Helper()
	chromium := require.Program(t, "chromium")
	b := &theBrowser
	b.once.Do(func() {
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.DisableGPU)
		alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, cancel := chromedp.NewContext(alloc)
		b.ctx = ctx
		b.close = func() {
			cancel() // waits for the browser's end
			stop()
		}
		b.err = chromedp.Do(ctx)
	})
	if b.err != nil {
		t.Fatalf("starting %s: %v", chromium, b.err)
	}
	return b.ctx
}

func TestMain(m *testing.M) {
	code := m.Run()
	if theBrowser.close != nil {
		theBrowser.close()
	}
	os.Exit(code)
}
