package draw

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/psidecar/psidecar/internal/page"
)

// A Screen is the data of psidecar top at one moment. Its strings must be safe for a terminal.
type Screen struct {
	Agent   page.Agent
	Jobs    []page.Job
	Shown   string // the job that is shown in detail
	Servers page.Servers
	History page.History
	Trouble string // why there is no newer data
	At      time.Time
}

// An emphasis is how a line is drawn on a terminal with colours.
type emphasis string

const (
	plain emphasis = ""
	bold  emphasis = "\x1b[1m"
	faint emphasis = "\x1b[2m"
	alarm emphasis = "\x1b[31m"
)

// A line is a line of a screen before it is cut to the width.
type line struct {
	text string
	how  emphasis
}

// Top writes a screen in lines of at most width columns.
func Top(out io.Writer, s *Screen, width int, colours Colours) error {
	var b strings.Builder
	for i, l := range topLines(s, width) {
		if i > 0 {
			b.WriteByte('\n')
		}
		// Cut before escape sequences are added, which take no columns.
		text := cut(l.text, width)
		if colours != NoColours && l.how != plain {
			text = string(l.how) + text + "\x1b[0m"
		}
		b.WriteString(text)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(out, b.String())
	return err
}

// cut shortens a line to width columns and marks it with an ellipsis.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(width-1, 0)]) + "…"
}

// topLines returns all lines of a screen, as many as there are.
func topLines(s *Screen, width int) []line {
	lines := []line{{topHead(s), bold}}
	if s.Trouble != "" {
		lines = append(lines, line{s.Trouble, alarm})
	}
	if len(s.Jobs) == 0 {
		return append(lines, line{}, line{"no PS-lite job has been seen; psidecar doctor checks whether this host can be watched", plain})
	}
	lines = append(lines, line{})
	lines = append(lines, jobLines(s)...)
	for i := range s.Jobs {
		if s.Jobs[i].Name == s.Shown {
			lines = append(lines, shownLines(s, &s.Jobs[i], width)...)
		}
	}
	return lines
}

// Reporting describes the number of hosts that report to a planner.
func Reporting(hosts int) string {
	if hosts == 1 {
		return "1 host reports"
	}
	return fmt.Sprintf("%d hosts report", hosts)
}

// topHead returns the title of a screen: who answered, when, and what it costs.
func topHead(s *Screen) string {
	a := &s.Agent
	who := "agent on " + a.Host
	if a.Hosts != nil {
		who = fmt.Sprintf("planner on %s, %s", a.Host, Reporting(len(a.Hosts)))
	}
	return fmt.Sprintf("psidecar %s: %s  %s  %.1f%% + %.1f%% of a core  %d MiB", a.Version, who, s.At.Format("15:04:05"), a.CPUPercent, a.KernelPercent, a.MemoryBytes>>20)
}

// aligned formats a table with aligned columns. The first row has the titles.
func aligned(rows [][]string) []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		panic(err) // a strings.Builder takes all
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

// jobLines returns the table of jobs. Stalled jobs stand out.
func jobLines(s *Screen) []line {
	rows := [][]string{{"  job", "state", "workers", "servers", "steps/s", "MB/s", "left host", "p50", "p99"}}
	for _, j := range s.Jobs {
		mark := "  "
		if j.Name == s.Shown {
			mark = "> "
		}
		left := 0.0
		if j.Bytes > 0 {
			left = 100 * float64(j.LeftHostBytes) / float64(j.Bytes)
		}
		rows = append(rows, []string{mark + titleOf(&j), cmp.Or(j.State, "?"), fmt.Sprint(j.Workers), fmt.Sprint(j.Servers), fmt.Sprintf("%.1f", j.StepsPerSecond),
			fmt.Sprintf("%.1f", j.BytesPerSecond/1e6), fmt.Sprintf("%.0f%%", left), took(j.Latency, j.Latency.P50), took(j.Latency, j.Latency.P99)})
	}
	var lines []line
	for i, text := range aligned(rows) {
		how := plain
		switch {
		case i == 0:
			how = faint
		case s.Jobs[i-1].State == page.Stalled:
			how = alarm
		case s.Jobs[i-1].State == page.Over:
			how = faint
		}
		lines = append(lines, line{text, how})
	}
	return lines
}

// took formats a latency; a dash if there were no answers.
func took(l page.Latency, seconds float64) string {
	if l.Count == 0 {
		return "-"
	}
	return time.Duration(seconds * float64(time.Second)).Round(10 * time.Microsecond).String()
}

// shownLines returns the details of the shown job: its state, curves, loads and hosts.
func shownLines(s *Screen, j *page.Job, width int) []line {
	lines := []line{{}}
	if j.What != "" {
		lines = append(lines, line{j.What, alarm})
	}
	for _, st := range j.Stalls {
		switch {
		case strings.HasSuffix(j.What, st.Text):
		case st.Kind == "late" || st.Kind == "straggling":
			lines = append(lines, line{"  " + st.Text, alarm})
		default:
			lines = append(lines, line{fmt.Sprintf("  for %.0f s: %s", st.Seconds, st.Text), alarm})
		}
	}
	lines = append(lines, curveLines(s, width)...)
	lines = append(lines, loadLines(s, j)...)
	return append(lines, hostLines(s)...)
}

// bars are the heights of a curve in one line of text.
var bars = []rune("▁▂▃▄▅▆▇█")

// Spark draws figures as bars from 0 to the highest, one column each. If they do not fit, the
// newest are shown.
func Spark(figures []float64, width int) string {
	if len(figures) > width {
		figures = figures[len(figures)-max(width, 0):]
	}
	if len(figures) == 0 {
		return ""
	}
	most := slices.Max(figures)
	var b strings.Builder
	for _, n := range figures {
		switch {
		case n <= 0 || most <= 0:
			b.WriteByte(' ')
		default:
			b.WriteRune(bars[min(int(n/most*float64(len(bars))), len(bars)-1)])
		}
	}
	return b.String()
}

// curveLines returns the shown job's curves, one line each, with the largest value in front.
func curveLines(s *Screen, width int) []line {
	points := s.History.Points
	if len(points) == 0 {
		return nil
	}
	curve := func(name string, of func(*page.HistoryPoint) float64, text func(float64) string) line {
		figures := make([]float64, len(points))
		most := 0.0
		for i := range points {
			figures[i] = of(&points[i])
			most = max(most, figures[i])
		}
		return line{fmt.Sprintf("%-8s %-12s %s", name, "≤ "+text(most), Spark(figures, width-24)), plain}
	}
	back := points[len(points)-1].To.Sub(points[0].From).Round(time.Second)
	return []line{
		{fmt.Sprintf("the last %s", back), faint},
		curve("steps/s", func(p *page.HistoryPoint) float64 { return p.StepsPerSecond }, func(n float64) string { return fmt.Sprintf("%.1f", n) }),
		curve("MB/s", func(p *page.HistoryPoint) float64 { return p.BytesPerSecond / 1e6 }, func(n float64) string { return fmt.Sprintf("%.1f", n) }),
		curve("p99", func(p *page.HistoryPoint) float64 { return p.P99 }, func(n float64) string { return fmt.Sprintf("%.2f ms", 1e3*n) }),
		{},
	}
}

// elsewhere reports whether a worker runs on another host, whose requests an agent does not see.
func elsewhere(j *page.Job, worker string) bool {
	agents, there := false, false
	for i := range j.Nodes {
		n := &j.Nodes[i]
		agents = agents || n.Local && n.Role == "worker"
		there = there || n.Local && n.Name == worker
	}
	return agents && !there
}

// loadLines returns the tables of servers, busiest first, and workers, slowest first.
func loadLines(s *Screen, j *page.Job) []line {
	servers := slices.Clone(s.Servers.Servers)
	slices.SortStableFunc(servers, func(a, b page.ServerLoad) int { return cmp.Compare(b.Share, a.Share) })
	rows := [][]string{{"server", "share", "", "MB in", "MB out", "requests", "p50", "p99"}}
	for _, l := range servers {
		rows = append(rows, []string{l.Name, fmt.Sprintf("%.0f%%", 100*l.Share), strings.Repeat("#", int(20*l.Share+0.5)),
			fmt.Sprintf("%.1f", float64(l.BytesIn)/1e6), fmt.Sprintf("%.1f", float64(l.BytesOut)/1e6), fmt.Sprint(l.Requests), took(l.Latency, l.Latency.P50), took(l.Latency, l.Latency.P99)})
	}
	lines := append([]line{{"the last minute", faint}}, titled(aligned(rows))...)
	workers := slices.Clone(s.Servers.Workers)
	slices.SortStableFunc(workers, func(a, b page.WorkerLoad) int { return cmp.Compare(a.StepsPerSecond, b.StepsPerSecond) })
	rows = [][]string{{"worker", "steps/s", "", "MB out", "MB in", "requests", "p50", "p99"}}
	for _, l := range workers {
		if elsewhere(j, l.Name) {
			rows = append(rows, []string{l.Name, "-", "on another host"})
			continue
		}
		lags := ""
		if l.Straggler {
			lags = "lags"
		}
		rows = append(rows, []string{l.Name, fmt.Sprintf("%.1f", l.StepsPerSecond), lags,
			fmt.Sprintf("%.1f", float64(l.BytesOut)/1e6), fmt.Sprintf("%.1f", float64(l.BytesIn)/1e6), fmt.Sprint(l.Requests), took(l.Latency, l.Latency.P50), took(l.Latency, l.Latency.P99)})
	}
	return append(append(lines, line{}), titled(aligned(rows))...)
}

// hostLines returns the table of hosts that report to a planner, the most expensive first.
func hostLines(s *Screen) []line {
	if len(s.Agent.Hosts) == 0 {
		return nil
	}
	hosts := slices.Clone(s.Agent.Hosts)
	slices.SortStableFunc(hosts, func(a, b page.Host) int {
		return cmp.Compare(b.CPUPercent+b.KernelPercent, a.CPUPercent+a.KernelPercent)
	})
	rows := [][]string{{"host", "of a core", "MiB", "reported", "lost"}}
	for _, h := range hosts {
		var lost []string
		for _, c := range h.Lost {
			lost = append(lost, c.Reason)
		}
		rows = append(rows, []string{h.Host, fmt.Sprintf("%.1f%% + %.1f%%", h.CPUPercent, h.KernelPercent), fmt.Sprint(h.MemoryBytes >> 20),
			s.At.Sub(h.Reported).Round(time.Second).String() + " ago", cmp.Or(strings.Join(lost, ", "), "nothing")})
	}
	return append([]line{{}}, titled(aligned(rows))...)
}

// titled returns the lines of a table, with faint titles.
func titled(table []string) []line {
	lines := make([]line, len(table))
	for i, text := range table {
		lines[i].text = text
		if i == 0 {
			lines[i].how = faint
		}
	}
	return lines
}
