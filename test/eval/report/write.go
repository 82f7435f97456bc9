package report

import (
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"strings"
)

// line is a [Comparison] as it is shown: with ours, its ratio to the paper's and what repeats
// it.
type line struct{ Claim, Paper, Ours, Ratio, Command, Note string }

// line puts ours beside what a paper states, or the reason why there is none.
func (h *Comparison) line(parts map[string]Part) line {
	l := line{Claim: h.Claim, Paper: h.Paper, Note: h.Note}
	if h.Ours == (Cell{}) {
		l.Ours = "out of reach"
		return l
	}
	part := parts[h.Ours.Part]
	part.Name = h.Ours.Part
	l.Command = part.Command()
	mode, _, _ := strings.Cut(part.Header, ",")
	switch l.Ours = find(parts, h.Ours); {
	// The reason comes before an older cell, of a run before.
	case part.Missing != "" && part.Missing != notRun:
		l.Ours = "not run: " + part.Missing
	case part.Text == "":
		l.Ours = "not run"
	case l.Ours == "":
		l.Ours = "not run: a " + mode + " run leaves it out, or found no data for it"
	}
	paper, stated := number(h.Paper)
	// Of differences, which have a sign, a ratio says nothing.
	difference := strings.HasPrefix(h.Paper, "+") || strings.HasPrefix(h.Paper, "-")
	if ours, ok := number(l.Ours); ok && stated && paper != 0 && !difference {
		l.Ratio = fmt.Sprintf("%.2f", ours/paper)
	}
	return l
}

// page is the content of the page, for both formats.
type page struct {
	Headlines []line
	Papers    []shownPaper
	Parts     []shown
}

// shownPaper is a paper as it is shown.
type shownPaper struct {
	Name, Title string
	Items       []shownItem
}

// shownItem is an item with its comparisons, and what repeats it alone.
type shownItem struct {
	Item
	Command string
	Lines   []line
}

// lines compares a paper's items with what the parts have.
func (p *Paper) lines(parts map[string]Part) shownPaper {
	s := shownPaper{Name: p.Name, Title: p.Title}
	for _, i := range p.Items {
		one := shownItem{Item: i}
		if i.Part != "" {
			part := Part{Name: i.Part}
			one.Command = part.Command()
		}
		for _, c := range i.Compared {
			one.Lines = append(one.Lines, c.line(parts))
		}
		s.Items = append(s.Items, one)
	}
	return s
}

// shown is a part as it is shown.
type shown struct {
	Part
	Blocks []block
}

// Write writes index.html and index.md to a folder, with the parts in their order. Parts of
// earlier runs belong to it as well, so that the page is always of all.
func Write(dir string, parts []Part) error {
	byName := map[string]Part{}
	p := page{}
	for _, part := range parts {
		byName[part.Name] = part
		p.Parts = append(p.Parts, shown{part, blocks(part.Text, dir)})
	}
	for _, h := range Headlines() {
		p.Headlines = append(p.Headlines, h.line(byName))
	}
	for _, paper := range Papers() {
		p.Papers = append(p.Papers, paper.lines(byName))
	}
	var html strings.Builder
	if err := layout.Execute(&html, p); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	for name, text := range map[string]string{"index.html": html.String(), "index.md": markdown(p)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
	}
	return nil
}

// markdown returns the page as markdown. Plots are files beside it.
func markdown(p page) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Five papers, repeated\n\n| the paper states first | its figure | ours | ours by the paper's | the command for it alone | of what |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, h := range p.Headlines {
		command := ""
		if h.Command != "" {
			command = "`" + h.Command + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", h.Claim, h.Paper, h.Ours, h.Ratio, command, h.Note)
	}
	for _, paper := range p.Papers {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| | the paper | ours | stands for | why it differs | the command for it alone |\n| --- | --- | --- | --- | --- | --- |\n", paper.Name, paper.Title)
		for _, i := range paper.Items {
			ours, command := i.Reason, ""
			if i.Part != "" {
				ours, command = fmt.Sprintf("[%s](#%s)", i.Part, i.Part), "`"+i.Command+"`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", i.Name, i.Claim, ours, i.StandIn, i.Why, command)
		}
		fmt.Fprintf(&b, "\n| | of what | the paper's figure | ours | ours by the paper's |\n| --- | --- | --- | --- | --- |\n")
		for _, i := range paper.Items {
			for _, l := range i.Lines {
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", i.Name, l.Claim, l.Paper, l.Ours, l.Ratio)
			}
		}
	}
	for _, s := range p.Parts {
		fmt.Fprintf(&b, "\n## %s\n\n", s.Name)
		if s.Missing != "" {
			fmt.Fprintf(&b, "There is none: %s. `%s`\n", s.Missing, s.Command())
			continue
		}
		fmt.Fprintf(&b, "`%s` (%s)\n\n%s\n", s.Command(), s.Header, strings.TrimSpace(s.Text))
	}
	return b.String()
}

// layout is the page in HTML. It has no script and loads nothing, so that the file alone can be
// passed on.
var layout = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Five papers, repeated</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #ccc; padding: .25em .7em; text-align: left; vertical-align: top; }
.figures td + td, .figures th + th { text-align: right; white-space: nowrap; }
pre { overflow-x: auto; background: #f5f5f5; padding: 1em; }
svg, img { max-width: 100%; height: auto; }
code { white-space: nowrap; }
.hint { color: #666; }
</style></head><body>
<h1>Five papers, repeated</h1>
<p>What the papers state first, and ours. Claims are compared, not times: the machines, data and models are others.</p>
<table><tr><th>the paper states first</th><th>its figure</th><th>ours</th><th>ours by the paper's</th><th>the command for it alone</th><th>of what</th></tr>
{{range .Headlines}}<tr><td>{{.Claim}}</td><td>{{.Paper}}</td><td>{{.Ours}}</td><td>{{.Ratio}}</td><td>{{if .Command}}<code>{{.Command}}</code>{{end}}</td><td>{{.Note}}</td></tr>
{{end}}</table>
{{range .Papers}}<h2>{{.Name}}</h2><p>{{.Title}}</p>
{{range .Items}}<h3>{{.Name}}</h3>
<p>{{.Claim}}</p>
{{if .Reason}}<p class="hint">{{.Reason}}</p>
{{else}}<p class="hint">Stands for it: {{.StandIn}}. Why it differs: {{.Why}}</p>
{{if .Lines}}<table class="figures"><tr><th>of what</th><th>the paper's figure</th><th>ours</th><th>ours by the paper's</th></tr>
{{range .Lines}}<tr><td>{{.Claim}}</td><td>{{.Paper}}</td><td>{{.Ours}}</td><td>{{.Ratio}}</td></tr>
{{end}}</table>
{{end}}<p class="hint">All of it: <a href="#{{.Part}}">{{.Part}}</a>. Alone: <code>{{.Command}}</code></p>
{{end}}{{end}}{{end}}
{{range .Parts}}<h2 id="{{.Name}}">{{.Name}}</h2>
{{if .Missing}}<p>There is none: {{.Missing}}. <code>{{.Command}}</code></p>
{{else}}<p class="hint"><code>{{.Command}}</code> ({{.Header}})</p>
{{range .Blocks}}{{if .Heading}}<h3>{{.Heading}}</h3>
{{else if .Paragraph}}<p>{{.Paragraph}}</p>
{{else if .Fixed}}<pre>{{.Fixed}}</pre>
{{else if .Plot}}{{.Plot}}
{{else}}<table class="figures"><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr>
{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
{{end}}{{end}}{{end}}{{end}}
</body></html>
`))
