package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestWrite: the page has each table and figure of the papers, with ours or why there is none,
// the parts' tables as tables, their plots within it, and asks for nothing else; the headlines
// have the cells of the parts' tables.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	text := "### A <heading>\n\nDCT Table 1: made\n\n| sparsity | test loss | against none | activations |\n|:---|---:|---:|---:|\n" +
		"| none | 0.5 | 0 |  |\n| 95%, 1 split | 0.6 | +0.1 | 1/20.5 |\n| 90%, 1 split | 0.5 | +0.02 | 1/10.1 |\n\n```\nas it is <b>\n```\n\nPlot: elsewhere/a.png\n\nPlot: b.png\n"
	for name, content := range map[string]string{"a.png": "png", "a.svg": "<?xml?>\n<svg id=\"one\"></svg>", "b.png": "png"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	require.NoError(t, Save(dir, "activations", "quick, today", text))
	var parts []Part
	for _, name := range []string{"activations", "slim"} {
		p, ok := Load(dir, name)
		if ok != (name == "activations") {
			t.Errorf("%s is there: %v", name, ok)
		}
		parts = append(parts, p)
	}
	if parts[0].Header != "quick, today" || parts[0].Text != text {
		t.Errorf("%+v", parts[0])
	}
	require.NoError(t, Write(dir, parts))
	html, md := read(t, dir, "index.html"), read(t, dir, "index.md")
	for _, p := range Papers() {
		for _, i := range p.Items {
			if !strings.Contains(md, "| "+i.Name+" | "+i.Claim+" | ") || !strings.Contains(html, "<h3>"+i.Name+"</h3>") {
				t.Errorf("%s of %s is missing", i.Name, p.Name)
			}
			if i.Part != "" && i.Compared == nil && !strings.HasPrefix(i.Why, "As ") {
				t.Errorf("%s of %s: nothing is compared", i.Name, p.Name)
			}
			if (i.Part == "") == (i.Reason == "") || i.Part != "" && (i.StandIn == "" || i.Why == "") {
				t.Errorf("%s of %s: want a part, what it stands for and why it differs, or a reason why there is none: %+v", i.Name, p.Name, i)
			}
		}
	}
	for _, want := range []string{"<td>1/20.5</td>", "<td>&#43;0.02</td>", "<pre>as it is &lt;b&gt;</pre>", "<h3>A &lt;heading&gt;</h3>", `<svg id="one">`, "data:image/png;base64,cG5n", "<td>not run</td>", "There is none: it was not run"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, other := range []string{"http://", "https://", "<script", "src=\"/", "<?xml"} {
		if strings.Contains(html, other) {
			t.Errorf("the page has %q", other)
		}
	}
	if !strings.Contains(md, "| DCT: times fewer bytes of activations | 20 times | 1/20.5 | 1.02 | `go run ./test/eval --what activations` |") {
		t.Errorf("no headline in\n%s", md)
	}
}

// read returns the content of a file.
func read(t *testing.T, dir, name string) string {
	t.Helper()
	text := require.Value(os.ReadFile(filepath.Join(dir, name)))(t)
	return string(text)
}
