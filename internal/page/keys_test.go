package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/psidecar/psidecar/test/require"
)

// A long key is short in the table, whole over it, and copied by a click.
func TestLongKeys(t *testing.T) {
	ctx := openLived(t, newLived())
	if got := look(t, ctx, `(() => { const b = document.querySelector("#keys .key"); return b.textContent + " " + b.title; })()`); got != "92233…5808 9223372036854775808 (click to copy)" {
		t.Errorf("the hottest key: %q", got)
	}
	do(t, ctx, "copy", chromedp.Evaluate[chromedp.Void](`navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; document.querySelector("#keys .key").click(); 0`))
	until(t, ctx, "copied", `window.copied === "9223372036854775808"`)
}

// estimates is a job of which not all requests are looked at.
type estimates struct{ lived }

func (e estimates) Jobs() []Job {
	jobs := e.lived.Jobs()
	jobs[0].SampledOneIn = 4
	return jobs
}

func (e estimates) Keys(job string, n int) (Keys, error) {
	k, err := e.lived.Keys(job, n)
	for i := range k.Hottest {
		k.Hottest[i].Error = 120
	}
	return k, err
}

// By how much the counts of keys may be wrong stands beside them.
func TestPageSaysItsError(t *testing.T) {
	l := newLived()
	ctx := openPageWith(t, estimates{l}, Options{History: l.History})
	if got := look(t, ctx, `[...document.querySelector("#keys").querySelectorAll("thead th, tbody tr:first-child td")].map((c) => c.textContent).join()`); !strings.HasPrefix(got, "key,accesses,±,pulls,") || !strings.Contains(got, ",1.00 M,120,") {
		t.Errorf("the hottest key: %q", got)
	}
	if got := look(t, ctx, `document.querySelector("#keys .hint").textContent`); !strings.Contains(got, "scaled up") {
		t.Errorf("of its counts it says %q", got)
	}
}

// Keys are shown by their names where they have any.
func TestPageNamesKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names.yaml")
	require.NoError(t, os.WriteFile(path, []byte("- {name: users, first: 9223372036854775808, last: 9223372036854775815, keys-per-row: 2}\n"), 0o644))
	called := require.Value(OpenNames(path))(t)
	l := newLived()
	ctx := openPageWith(t, l, Options{History: l.History, Names: called})
	if got := look(t, ctx, `[...document.querySelector("#keys tbody").rows[3].cells].slice(0, 2).map((c) => c.textContent).join()`); got != "users[1].1,92233…5811" {
		t.Errorf("the fourth key is %q", got)
	}
}
