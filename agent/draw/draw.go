// Package draw draws heatmaps where there is no browser: in a terminal, in the
// colours that it has, and as PNG.
//
// In comes a [web.Heatmap]; out go characters or an image. The command
// psidecar heatmap calls it.
package draw

import (
	"bufio"
	"fmt"
	"image/color"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/psidecar/psidecar/agent/web"
)

// Colours says what a terminal can show.
type Colours int

// What terminals can show.
const (
	NoColours Colours = iota // shades made of characters
	Colours256
	TrueColour
)

// ColoursOf returns what the terminal can show, by its environment: COLORTERM,
// TERM and NO_COLOR.
func ColoursOf(lookup func(string) (string, bool)) Colours {
	get := func(name string) string { v, _ := lookup(name); return v }
	if get("NO_COLOR") != "" || get("TERM") == "dumb" {
		return NoColours
	}
	if c := get("COLORTERM"); c == "truecolor" || c == "24bit" || strings.HasSuffix(get("TERM"), "-direct") {
		return TrueColour
	}
	if strings.Contains(get("TERM"), "256color") {
		return Colours256
	}
	return NoColours
}

// shades stand for rising heat where there are no colours.
const shades = " .:-=+*#%@"

// looked says how exact the counts are.
func looked(h web.Heatmap) string {
	if h.SampledOneIn <= 1 {
		return "estimated in part"
	}
	if h.ErrorPercent == 0 {
		return fmt.Sprintf("keys of one in %d requests looked at", h.SampledOneIn)
	}
	return fmt.Sprintf("keys of one in %d requests looked at, a cell is right to about %.0f%%", h.SampledOneIn, math.Ceil(h.ErrorPercent))
}

// Terminal writes the heatmap, a line for each worker, in at most width
// columns; neighbouring blocks are joined where there are more.
func Terminal(out io.Writer, h web.Heatmap, width int, colours Colours) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%s: %s by worker and key", h.Job, h.Measure)
	if !h.Exact {
		fmt.Fprintf(w, " (%s)", looked(h))
	}
	fmt.Fprintln(w)
	if len(h.Blocks) == 0 || len(h.Workers) == 0 {
		fmt.Fprintln(w, "nothing was counted yet")
		return w.Flush()
	}
	label := 0
	for _, name := range h.Workers {
		label = max(label, utf8.RuneCountInString(name))
	}
	counts, columns := squeeze(h.Counts, len(h.Blocks), max(width-label-1, 8))
	top := highest(counts)
	for i, name := range h.Workers {
		fmt.Fprintf(w, "%*s ", label, name)
		for _, n := range counts[i] {
			cell(w, heat(n, top), colours)
		}
		if colours != NoColours {
			fmt.Fprint(w, "\x1b[0m")
		}
		fmt.Fprintln(w)
	}
	first, last := h.Blocks[0].FirstText, h.Blocks[len(h.Blocks)-1].LastText
	fmt.Fprintf(w, "%*s %s%*s\n", label, "key", first, max(columns-len(first), 0), last)
	fmt.Fprintf(w, "%*s 0 ", label, "")
	for i := range 16 {
		cell(w, float64(i)/15, colours)
	}
	if colours != NoColours {
		fmt.Fprint(w, "\x1b[0m")
	}
	fmt.Fprintf(w, " %d in %d blocks, logarithmic\n", top, len(h.Blocks))
	return w.Flush()
}

// squeeze joins neighbouring columns until at most width are left.
func squeeze(counts [][]uint64, blocks, width int) ([][]uint64, int) {
	each := max((blocks+width-1)/width, 1)
	columns := (blocks + each - 1) / each
	rows := make([][]uint64, len(counts))
	for i, row := range counts {
		rows[i] = make([]uint64, columns)
		for b, n := range row {
			rows[i][b/each] += n
		}
	}
	return rows, columns
}

func highest(counts [][]uint64) uint64 {
	top := uint64(0)
	for _, row := range counts {
		for _, n := range row {
			top = max(top, n)
		}
	}
	return top
}

// heat returns how hot n is, from 0 to 1, on a logarithmic scale.
func heat(n, top uint64) float64 {
	if n == 0 || top == 0 {
		return 0
	}
	return math.Log1p(float64(n)) / math.Log1p(float64(top))
}

func cell(w io.Writer, heat float64, colours Colours) {
	c := colourOf(heat)
	switch colours {
	case TrueColour:
		fmt.Fprintf(w, "\x1b[48;2;%d;%d;%dm ", c.R, c.G, c.B)
	case Colours256:
		step := func(v uint8) int { return (int(v)*5 + 127) / 255 }
		fmt.Fprintf(w, "\x1b[48;5;%dm ", 16+36*step(c.R)+6*step(c.G)+step(c.B))
	default:
		fmt.Fprintf(w, "%c", shades[int(math.Round(heat*float64(len(shades)-1)))])
	}
}

// stops are the colours of heat 0, 1/4, ... 1: dark blue to yellow by way of
// purple and orange, rising in lightness, so that they can be told apart
// without telling colours apart.
var stops = [...]color.RGBA{
	{13, 8, 60, 255}, {98, 16, 140, 255}, {190, 52, 100, 255}, {245, 130, 50, 255}, {250, 235, 110, 255},
}

func colourOf(heat float64) color.RGBA {
	at := heat * float64(len(stops)-1)
	i := min(int(at), len(stops)-2)
	part := at - float64(i)
	mix := func(a, b uint8) uint8 { return uint8(math.Round(float64(a) + part*(float64(b)-float64(a)))) }
	a, b := stops[i], stops[i+1]
	return color.RGBA{mix(a.R, b.R), mix(a.G, b.G), mix(a.B, b.B), 255}
}
