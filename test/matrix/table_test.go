package matrix

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/test/matrix/pattern"
)

// table is what came of the pairs.
type table struct {
	mu    sync.Mutex
	cells map[[2]string]string // by measure and pattern
}

const page = "../../docs/matrix.md"

// read returns the table of the page.
func read(t *testing.T) map[[2]string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil && !(*update && errors.Is(err, fs.ErrNotExist)) {
		t.Fatal(err)
	}
	all := map[[2]string]string{}
	var head []string
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		cells = cells[1:max(1, len(cells)-1)]
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case !strings.HasPrefix(line, "| "):
		case head == nil:
			head = cells
		default:
			for i, c := range cells[1:] {
				all[[2]string{head[1+i], cells[0]}] = c
			}
		}
	}
	return all
}

// write writes what there is of the table into the page, where the rest stays as it is.
func (of *table) write(t *testing.T, patterns []*pattern.Pattern, measures []*setting) {
	t.Helper()
	before := read(t)
	var b strings.Builder
	b.WriteString(preface + "| way |")
	for _, m := range measures {
		fmt.Fprintf(&b, " %s |", m.name)
	}
	b.WriteString("\n|:--|" + strings.Repeat(":--|", len(measures)) + "\n")
	for _, p := range patterns {
		fmt.Fprintf(&b, "| %s |", p.Name)
		for _, m := range measures {
			at := [2]string{m.name, p.Name}
			cell := cmp.Or(of.cells[at], before[at], "?")
			if m.without != nil && m.without(p) {
				cell = "-"
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// check compares the table with the page.
func (of *table) check(t *testing.T) {
	t.Helper()
	before := read(t)
	for at, got := range of.cells {
		if want := before[at]; got != want {
			t.Errorf("%s, %s: %s; docs/matrix.md says %q: see -update", at[0], at[1], got, want)
		}
	}
}

const preface = `# Patterns and measures

Written by ` + "`go test ./test/matrix -update`" + `, which runs all pairs. ` + "`make test`" + ` runs a tenth of them and ` + "`make test-all`" + ` all but those
in which something happens while keys move (restore, rollback, planner restarted, proxies replaced, act taken away), of which it
runs a third, and half of **moves, probed** and **sums and moves**; the seed that each run prints says which. Each row is a way of using PS-lite, each column a measure. Every pair is a
job that is compared with what the same job ends with without psidecar:

- **exact**: equal bit for bit, in all workers; keys moved, values were rounded and so on meanwhile. Where a measure ends (a
  threshold's last step, a plan that is restored), it is the values after that.
- **rounded**: a measure that leaves out or rounds numbers for good did so within its bounds; numbers of types that it does not
  know are equal bit for bit.
- **off: REASON**: equal bit for bit, since psidecar leaves the job alone; ` + "`psidecar status` and `psidecar plan show`" + ` say why.
- **refused: REASON**: the job cannot start; the proxies' logs and metrics say why.
- **-**: the measure changes what such servers do, as is documented, so that there is nothing to compare. With
  **moves, probed** also: servers that answer all workers' pushes together do not answer a move's, so that its keys are refused
  as busy, each time after 40 s.

With **auto** alone connections go direct unless their link is slow; [test/faults](../test/faults/spare_test.go) moves them in and out.

`
