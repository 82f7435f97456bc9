// Package draw draws where there is no browser: heatmaps in a terminal, in the colours that it
// has, or as PNG; and the tables and screens of psidecar status and psidecar top.
//
// Everything is a function of data from package page, except for [View], which reads keys and
// repaints a terminal.
//
// # Colours
//
// A [Scale] maps counts to colours. The page, the terminal and the PNG share it, so a count has
// the same colour in all three.
//
// The scale is logarithmic, from the smallest count above 0 to the largest, and spans at least
// a factor of two: otherwise counts that hardly differ would have opposite colours. Its
// parameters are in scale.json, from which the page is built too, with cases that the tests of
// both check.
package draw

import (
	"bufio"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/psidecar/psidecar/internal/page"
)

// Colours says which colours a terminal can show.
type Colours int

// What terminals can show.
const (
	NoColours Colours = iota // characters of different darkness instead
	Colours256
	TrueColour
)

// ColoursOf returns what the terminal can show, according to COLORTERM, TERM and NO_COLOR.
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

// shades are characters of increasing darkness, for terminals without colours.
const shades = " .:-=+*#%@"

// looked describes how exact the counts are.
func looked(h page.Heatmap) string {
	if h.SampledOneIn <= 1 {
		return "estimated in part"
	}
	if h.ErrorPercent == 0 {
		return fmt.Sprintf("keys of at least one in %d requests inspected", h.SampledOneIn)
	}
	return fmt.Sprintf("keys of at least one in %d requests inspected, cells are accurate to about %.0f%%", h.SampledOneIn, math.Ceil(h.ErrorPercent))
}

// rowsOf returns what the rows are and their names, top row first: workers, or the beginnings
// of stretches of time.
func rowsOf(h *page.Heatmap) (what string, names []string) {
	if h.Times == nil {
		return "worker", h.Workers
	}
	for _, t := range h.Times {
		names = append(names, t.From.Local().Format(time.TimeOnly))
	}
	return "time", names
}

// title says what the heatmap shows.
func title(h *page.Heatmap, rows string) string {
	text := fmt.Sprintf("%s: %s by %s and key", h.Job, h.Measure, rows)
	if !h.Exact {
		text += " (" + looked(*h) + ")"
	}
	return text
}

// Terminal writes the heatmap with a line for each row, in at most width columns. Neighbouring
// blocks are joined if there are more.
func Terminal(out io.Writer, h page.Heatmap, width int, colours Colours) error {
	w := bufio.NewWriter(out)
	rows, names := rowsOf(&h)
	fmt.Fprintln(w, title(&h, rows))
	if len(h.Blocks) == 0 || len(names) == 0 {
		fmt.Fprintln(w, "no counts yet")
		return w.Flush()
	}
	label := 0
	for _, name := range names {
		label = max(label, utf8.RuneCountInString(name))
	}
	sc, inks := ScaleOf(h.Counts), ScaleColours(true)
	// The names of rows come out of the width. At least 8 columns are drawn in any case, even
	// if lines then wrap.
	counts, columns := squeeze(h.Counts, len(h.Blocks), max(width-label-1, 8))
	for i, name := range names {
		fmt.Fprintf(w, "%*s ", label, name)
		for _, n := range counts[i] {
			cell(w, sc.Level(float64(n)), &inks, colours)
		}
		end(w, colours)
		fmt.Fprintln(w)
	}
	// The axis has the first and the last key, at the ends of the columns.
	first, last := h.Blocks[0].FirstText, h.Blocks[len(h.Blocks)-1].LastText
	fmt.Fprintf(w, "%*s %s%*s\n", label, "key", first, max(columns-len(first), 0), last)
	for _, n := range named(h.Blocks) {
		fmt.Fprintf(w, "%*s %s%s\n", label, "", strings.Repeat(" ", n.at*columns/len(h.Blocks)), n.name)
	}
	fmt.Fprintf(w, "%*s ", label, "")
	for _, mark := range sc.Marks() {
		cell(w, sc.Level(mark), &inks, colours)
		end(w, colours)
		fmt.Fprintf(w, " %.0f  ", mark)
	}
	fmt.Fprintf(w, "logarithmic, %d blocks", len(h.Blocks))
	if columns < len(h.Blocks) {
		fmt.Fprintf(w, ", the highest of %d a column", (len(h.Blocks)+columns-1)/columns)
	}
	fmt.Fprintln(w)
	if unseen := empty(&h); len(unseen) > 0 && len(unseen) < len(names) {
		fmt.Fprintf(w, "no counts of %s: an agent sees the workers of its own host; for all, ask a planner (--agent HOST:9812)\n", strings.Join(unseen, ", "))
	}
	return w.Flush()
}

// empty returns the workers without counts, at most maxNamings.
func empty(h *page.Heatmap) (workers []string) {
	for i, name := range h.Workers {
		if h.Times == nil && len(workers) < maxNamings && i < len(h.Counts) && !slices.ContainsFunc(h.Counts[i], func(n uint64) bool { return n > 0 }) {
			workers = append(workers, name)
		}
	}
	return workers
}

// naming is the name of consecutive blocks, of which at is the first.
type naming struct {
	at   int
	name string
}

// maxNamings bounds the names shown below the keys.
const maxNamings = 12

// named returns the names of the blocks. Neighbours of one table share a name; the table is the
// part before the row or offset. If there are too many, the first are returned, and a last one
// that says how many are left out.
func named(blocks []page.Block) []naming {
	var all []naming
	last := ""
	for i := range blocks {
		table, _, _ := strings.Cut(blocks[i].Name, "[")
		table, _, _ = strings.Cut(table, "+")
		if table != last && table != "" {
			all = append(all, naming{i, blocks[i].Name})
		}
		last = table
	}
	if more := len(all) - maxNamings; more > 0 {
		all = append(all[:maxNamings], naming{0, fmt.Sprintf("and %d names more", more)})
	}
	for i := range all {
		all[i].name = "^ " + all[i].name
	}
	return all
}

// squeeze joins neighbouring columns until at most width are left. A joined column has the
// highest of its counts, not their sum, so that the scale of the whole heatmap still applies.
func squeeze(counts [][]uint64, blocks, width int) ([][]uint64, int) {
	each := max((blocks+width-1)/width, 1)
	columns := (blocks + each - 1) / each
	rows := make([][]uint64, len(counts))
	for i, row := range counts {
		rows[i] = make([]uint64, columns)
		for b, n := range row {
			rows[i][b/each] = max(rows[i][b/each], n)
		}
	}
	return rows, columns
}

// end restores the terminal's own colours.
func end(w io.Writer, colours Colours) {
	if colours != NoColours {
		fmt.Fprint(w, "\x1b[0m")
	}
}

// cell draws one cell. With 256 colours it takes the nearest one of the 6x6x6 cube.
func cell(w io.Writer, level int, inks *[ScaleLevels]color.RGBA, colours Colours) {
	c := inks[level]
	switch colours {
	case TrueColour:
		fmt.Fprintf(w, "\x1b[48;2;%d;%d;%dm ", c.R, c.G, c.B)
	case Colours256:
		// The cube's steps are taken to be even, which is near enough for a heatmap.
		step := func(v uint8) int { return (int(v)*5 + 127) / 255 }
		fmt.Fprintf(w, "\x1b[48;5;%dm ", 16+36*step(c.R)+6*step(c.G)+step(c.B))
	default:
		fmt.Fprintf(w, "%c", shade(level))
	}
}

// shade returns the character of a level. Only level 0 is blank, so every count above 0 can be
// seen.
func shade(level int) byte {
	if level == 0 {
		return shades[0]
	}
	return shades[1+level*(len(shades)-1)/ScaleLevels]
}
