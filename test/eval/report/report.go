// Package report puts what the parts of test/eval wrote beside what five papers have:
// a page of HTML that needs nothing else, with its plots, and markdown. In come the
// parts' markdown and a folder of plots; [Write] writes both. Package main of test/eval
// calls it.
//
// # Figures
//
// [WriteFigure] draws panels of lines, side by side, as one PNG or SVG. Package main
// of test/eval and the measurements among the tests call it.
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
	Header  string // how it was run
	Missing string // why there is none; empty: there is
}

// Command is what repeats a part alone.
func (p *Part) Command() string { return "go run ./test/eval --what " + p.Name }

// File is a finished part's, in a folder.
func File(dir, name string) string { return filepath.Join(dir, "parts", name+".md") }

// notRun is why there is nothing of a part that nobody has asked for.
const notRun = "it was not run"

// headerMark begins the first line of a part's file.
const headerMark = "<!-- "

// Save writes a part's file whole, or not at all.
func Save(dir, name, header, text string) error {
	path := File(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the parts' folder: %w", err)
	}
	if err := os.WriteFile(path+".new", []byte(headerMark+header+" -->\n"+text), 0o644); err != nil {
		return fmt.Errorf("writing a part: %w", err)
	}
	return os.Rename(path+".new", path)
}

// Load reads a part's file; ok is false where there is none.
func Load(dir, name string) (p Part, ok bool) {
	text, err := os.ReadFile(File(dir, name))
	if err != nil {
		return Part{Name: name, Missing: notRun}, false
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	header := strings.TrimSuffix(strings.TrimPrefix(first, headerMark), " -->")
	return Part{Name: name, Text: rest, Header: header}, true
}

// number returns the first number of a cell; of "1/20.5" it is 20.5, so many times
// fewer. Without ok there is none.
func number(cell string) (n float64, ok bool) {
	first, _, _ := strings.Cut(strings.TrimSpace(cell), " ")
	n, err := strconv.ParseFloat(strings.TrimRight(strings.TrimPrefix(first, "1/"), "%"), 64)
	return n, err == nil
}

// find returns a cell of a part's tables; empty where there is none.
func find(parts map[string]Part, c Cell) string {
	head, inside := []string(nil), false
	for line := range strings.SplitSeq(parts[c.Part].Text, "\n") {
		switch {
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

// cells are those of a line of a markdown table.
func cells(line string) []string {
	all := strings.Split(strings.Trim(line, "|"), "|")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// block is a piece of a part: a paragraph, heading, table, text as it is, or plot.
type block struct {
	Paragraph, Heading, Fixed string
	Head                      []string
	Rows                      [][]string
	Plot                      template.HTML
}

// blocks reads a part's markdown, of the kind that test/eval writes.
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

// drawPlot is a plot's file as part of a page: the SVG beside it where there is one.
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
