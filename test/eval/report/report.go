// Package report puts what the parts of test/eval wrote beside what five papers have: a page of
// HTML that needs nothing else, plots included, and the same as markdown. Its input is the
// parts' markdown and a folder of plots; [Write] writes both. The command in test/eval calls
// it.
//
// What the papers have is in papers.go, papers_models.go and headlines.go, as data. A
// comparison names a cell of a part's table rather than holding a number, so that the page
// shows what the last run found.
//
// # Figures
//
// [WriteFigure] draws panels of lines, side by side, as one PNG or SVG. The command in
// test/eval and measurements among the tests call it.
package report

import (
	"encoding/base64"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Part is what a part of test/eval wrote.
type Part struct {
	Name    string
	Text    string // markdown
	Header  string // how it was run: mode, date, host and time taken
	Missing string // why there is none; empty: there is
}

// Command returns the command line that repeats the part alone.
func (p *Part) Command() string { return "go run ./test/eval --what " + p.Name }

// File returns the path of a finished part's markdown in a folder.
func File(dir, name string) string { return filepath.Join(dir, "parts", name+".md") }

// notRun is the reason for missing if nobody has asked for a part.
const notRun = "it was not run"

// headerMark begins the first line of a part's file. That line is a comment in markdown.
const headerMark = "<!-- "

// Save writes a part's file whole, or not at all. It replaces an older one.
func Save(dir, name, header, text string) error {
	path := File(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the parts' folder: %w", err)
	}
	// Renamed when it is complete: an interrupted run must not leave a part that looks
	// finished.
	if err := os.WriteFile(path+".new", []byte(headerMark+header+" -->\n"+text), 0o644); err != nil {
		return fmt.Errorf("writing a part: %w", err)
	}
	return os.Rename(path+".new", path)
}

// Load reads a part's file. If there is none, ok is false and the part says that it was not
// run.
func Load(dir, name string) (p Part, ok bool) {
	text, err := os.ReadFile(File(dir, name))
	if err != nil {
		return Part{Name: name, Missing: notRun}, false
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	header := strings.TrimSuffix(strings.TrimPrefix(first, headerMark), " -->")
	return Part{Name: name, Text: rest, Header: header}, true
}

// number returns the first number of a cell. That of "1/20.5" is 20.5, so many times fewer. ok
// is false if the cell does not begin with a number.
func number(cell string) (n float64, ok bool) {
	first, _, _ := strings.Cut(strings.TrimSpace(cell), " ")
	n, err := strconv.ParseFloat(strings.TrimRight(strings.TrimPrefix(first, "1/"), "%"), 64)
	return n, err == nil
}

// find returns a cell of a part's tables; empty if there is none. The line above a table is its
// title. Several tables may have titles that begin alike; the first that has row and column
// counts.
func find(parts map[string]Part, c Cell) string {
	head, inside := []string(nil), false
	for line := range strings.SplitSeq(parts[c.Part].Text, "\n") {
		switch {
		// A line of text between tables is the next one's title.
		case !strings.HasPrefix(line, "|"):
			if line != "" {
				inside = strings.HasPrefix(strings.TrimLeft(line, "# "), c.Table)
			}
			head = nil
		case !inside:
		case head == nil:
			head = cells(line)
		default:
			row := cells(line)
			if at := slices.Index(head, c.Column); row[0] == c.Row && at >= 0 && at < len(row) {
				return row[at]
			}
		}
	}
	return ""
}

// cells returns the cells of a line of a markdown table.
func cells(line string) []string {
	all := strings.Split(strings.Trim(line, "|"), "|")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// block is a piece of a part: exactly one of a paragraph, heading, table, text as it is, or
// plot.
type block struct {
	Paragraph, Heading, Fixed string
	Head                      []string
	Rows                      [][]string
	Plot                      template.HTML
}

// blocks parses a part's markdown, of the kind that test/eval writes. dir is the folder of the
// plots.
func blocks(text, dir string) (all []block) {
	var fixed []string
	fence := false
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "```") {
			if fence {
				all, fixed = append(all, block{Fixed: strings.Join(fixed, "\n")}), nil
			}
			fence = !fence
			continue
		}
		last := len(all) - 1
		switch {
		case fence:
			fixed = append(fixed, line)
		case strings.HasPrefix(line, "|:") || strings.HasPrefix(line, "| -") || strings.TrimSpace(line) == "":
		case strings.HasPrefix(line, "|") && last >= 0 && all[last].Head != nil:
			all[last].Rows = append(all[last].Rows, cells(line))
		case strings.HasPrefix(line, "|"):
			all = append(all, block{Head: cells(line)})
		case strings.HasPrefix(line, "#"):
			all = append(all, block{Heading: strings.TrimLeft(line, "# ")})
		case strings.HasPrefix(line, "Plot: "):
			all = append(all, block{Plot: drawPlot(filepath.Join(dir, filepath.Base(strings.TrimPrefix(line, "Plot: "))))})
		default:
			all = append(all, block{Paragraph: line})
		}
	}
	return all
}

// drawPlot returns a plot's file as a piece of the page: the SVG beside it if there is one,
// which is sharp at any size, or else the PNG itself. A missing file is said in its place.
func drawPlot(png string) template.HTML {
	if svg, err := os.ReadFile(strings.TrimSuffix(png, ".png") + ".svg"); err == nil {
		if at := strings.Index(string(svg), "<svg"); at >= 0 {
			return template.HTML(svg[at:])
		}
	}
	image, err := os.ReadFile(png)
	if err != nil {
		return template.HTML("<p>" + template.HTMLEscapeString("no plot: "+err.Error()) + "</p>")
	}
	return template.HTML(`<img alt="plot" src="data:image/png;base64,` + base64.StdEncoding.EncodeToString(image) + `">`)
}
