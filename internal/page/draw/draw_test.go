package draw

import (
	"bytes"
	"fmt"
	"image/color"
	"image/png"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/require"
)

func sample(workers, blocks int) page.Heatmap {
	h := page.Heatmap{Job: "j", Measure: page.Accesses, Exact: true}
	for b := range uint64(blocks) {
		h.Blocks = append(h.Blocks, page.NewBlock(10*b, 10*b+9, 10, false))
	}
	for w := range workers {
		h.Workers = append(h.Workers, fmt.Sprintf("worker%d", w))
		row := make([]uint64, blocks)
		row[w%blocks] = 1000
		h.Counts = append(h.Counts, row)
	}
	return h
}

func TestTerminal(t *testing.T) {
	for _, tc := range []struct {
		colours Colours
		want    string
	}{
		{NoColours, "worker1  @  \n"},
		{NoColours, "logarithmic, 4 blocks"},
		{Colours256, "\x1b[48;5;"},
		{TrueColour, "worker1 \x1b[48;2;22;25;32m \x1b[48;2;246;236;150m "},
	} {
		var out bytes.Buffer
		require.NoError(t, Terminal(&out, sample(3, 4), 80, tc.colours))
		if !strings.Contains(out.String(), tc.want) {
			t.Errorf("%d: %q, want %q in it", tc.colours, out.String(), tc.want)
		}
	}
	var out bytes.Buffer
	require.NoError(t, Terminal(&out, sample(3, 1000), 60, NoColours))
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "worker") && len(line) > 61 {
			t.Errorf("line of %d columns, want at most 60: %q", len(line)-1, line)
		}
	}
	out.Reset()
	if err := Terminal(&out, page.Heatmap{Job: "j"}, 80, TrueColour); err != nil || !strings.Contains(out.String(), "no counts yet") {
		t.Errorf("an empty heatmap: %q, %v", out.String(), err)
	}
}

func TestColoursOf(t *testing.T) {
	for _, tc := range []struct {
		vars map[string]string
		want Colours
	}{
		{map[string]string{"COLORTERM": "truecolor", "TERM": "xterm"}, TrueColour},
		{map[string]string{"TERM": "screen-256color"}, Colours256},
		{map[string]string{"TERM": "vt100"}, NoColours},
		{map[string]string{"COLORTERM": "truecolor", "NO_COLOR": "1"}, NoColours},
		{nil, NoColours},
	} {
		got := ColoursOf(func(name string) (string, bool) { v, ok := tc.vars[name]; return v, ok })
		if got != tc.want {
			t.Errorf("%v: %d, want %d", tc.vars, got, tc.want)
		}
	}
}

// inkOf returns how many pixels of a PNG have each colour.
func inkOf(t *testing.T, file *bytes.Buffer) map[color.RGBA]int {
	t.Helper()
	img := require.Value(png.Decode(file))(t)
	found := map[color.RGBA]int{}
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			found[color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)]++
		}
	}
	return found
}

func TestPNG(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, PNG(&out, sample(2, 2)))
	// Half of the cells of two workers by two blocks are the hottest, half are empty.
	inks, found := ScaleColours(false), inkOf(t, &out)
	hot, none := found[inks[ScaleLevels-1]], found[inks[0]]
	if hot < 10_000 || none < 10_000 || hot > 2*none || none > 2*hot {
		t.Errorf("%d pixels have the colour of the most, %d that of nothing", hot, none)
	}
	for _, h := range []page.Heatmap{{}, sample(1000, 3000)} {
		if err := PNG(&out, h); err != nil {
			t.Errorf("%d workers: %v", len(h.Workers), err)
		}
	}
}

// A scale's ends are the counts', whatever blocks a narrow terminal joins.
func TestOneScale(t *testing.T) {
	h := sample(3, 512)
	for i := range h.Counts {
		for b := range h.Counts[i] {
			h.Counts[i][b] = uint64(9058 + b%31)
		}
	}
	var out bytes.Buffer
	require.NoError(t, Terminal(&out, h, 60, NoColours))
	if text := out.String(); !strings.Contains(text, " 4544  ") || !strings.Contains(text, "@ 9088  ") || strings.Contains(text, "worker0 .") {
		t.Errorf("the scale does not go from 4544 to 9088, or shows them as nothing:\n%s", text)
	}
}

// Names of keys stand below them where they begin, once for each table, and on
// the image's axis.
func TestNamedKeys(t *testing.T) {
	h := sample(2, 4)
	for i, name := range []string{"users[0..9]", "users[10..19]", "", "items[5]"} {
		h.Blocks[i].Name = name
	}
	var out bytes.Buffer
	require.NoError(t, Terminal(&out, h, 80, NoColours))
	if text := out.String(); !strings.Contains(text, " ^ users[0..9]\n") || !strings.Contains(text, "    ^ items[5]\n") || strings.Contains(text, "users[10") {
		t.Errorf("in the terminal:\n%s", text)
	}
	if got := keyTicks(h.Blocks); got[0].Label != "users[0..9]" {
		t.Errorf("on the axis: %+v", got)
	}
	h.Blocks[0].Name = strings.Repeat("long", 20)
	if got := keyTicks(h.Blocks); len([]rune(got[0].Label)) > 32 {
		t.Errorf("on the axis: %+v", got)
	}
	many := sample(1, 40)
	for i := range many.Blocks {
		many.Blocks[i].Name = fmt.Sprintf("table%d", i)
	}
	if got := named(many.Blocks); len(got) != maxNamings+1 || got[maxNamings].name != "^ and 28 names more" {
		t.Errorf("of very many: %+v", got)
	}
	out.Reset()
	require.NoError(t, PNG(&out, h))
}

// By time a row is named by when it begins, in the terminal and in the image.
func TestByTime(t *testing.T) {
	h := sample(3, 4)
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	h.Workers, h.Times = nil, page.RowsOf(began, began.Add(30*time.Second), 3)
	var out bytes.Buffer
	require.NoError(t, Terminal(&out, h, 80, NoColours))
	if text := out.String(); !strings.HasPrefix(text, "j: accesses by time and key\n03:04:05 @   \n03:04:15  @  \n") {
		t.Errorf("in the terminal:\n%s", text)
	}
	_, names := rowsOf(&h)
	if got := rowTicks(names); len(got) != 3 || got[0].Label != "03:04:05" || got[0].Value != 2.5 {
		t.Errorf("beside the image: %+v", got)
	}
	out.Reset()
	require.NoError(t, PNG(&out, h))
	byWorker := sample(3, 4)
	var other bytes.Buffer
	require.NoError(t, PNG(&other, byWorker))
	a := require.Value(png.DecodeConfig(bytes.NewReader(out.Bytes())))(t)
	b, err := png.DecodeConfig(bytes.NewReader(other.Bytes()))
	if err != nil || a.Width != b.Width || a.Height != b.Height {
		t.Errorf("the image is %d x %d, of as many workers %d x %d: %v", a.Width, a.Height, b.Width, b.Height, err)
	}
}

// Names of any width leave room for the cells.
func TestPNGOfWideNames(t *testing.T) {
	h := sample(1, 4)
	h.Workers[0] = strings.Repeat("W", 500)
	for i := range h.Blocks {
		h.Blocks[i].Name = strings.Repeat("W", 500)
	}
	var out bytes.Buffer
	require.NoError(t, PNG(&out, h))
	if found := inkOf(t, &out)[ScaleColours(false)[ScaleLevels-1]]; found < 1000 {
		t.Errorf("%d pixels of the hottest cell", found)
	}
}
