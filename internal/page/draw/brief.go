package draw

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// Brief writes a line for psidecar and one for each job, and below a job only what is wrong with
// it and what to do. History has the jobs' last hour, by job.
func (r *Status) Brief(w io.Writer, history map[string]page.History) {
	a := &r.Agent
	part, hosts := "agent", ""
	if a.Hosts != nil {
		part, hosts = "planner", ", "+Reporting(len(a.Hosts))
	}
	fmt.Fprintf(w, "%s on %s, up %s%s: psidecar takes %.1f%% of a core and %d MiB\n",
		part, a.Host, time.Since(a.Started).Round(time.Second), hosts, a.CPUPercent+a.KernelPercent, a.MemoryBytes>>20)
	if p := a.Planner; p != nil && !p.Connected {
		fmt.Fprintf(w, "  planner at %s, not connected: %s\n", p.Address, p.Error)
	}
	except := passing
	if a.Proxy { // it says so of each job
		except = append(slices.Clip(except), page.FastLink)
	}
	printDirect(w, a.Adoption, except)
	if a.Hosts == nil { // a planner's counters are the sums of its hosts'
		printLost(w, "", a.Counters)
	}
	for i := range a.Hosts {
		printLost(w, a.Hosts[i].Host+" ", a.Hosts[i].Lost)
	}
	if len(r.Jobs) == 0 {
		fmt.Fprintln(w, "no PS-lite job has been seen")
	}
	jobs := slices.Clone(r.Jobs)
	slices.SortStableFunc(jobs, func(a, b page.Job) int { return cmp.Compare(titleOf(&a), titleOf(&b)) })
	for i := range jobs {
		j := &jobs[i]
		fmt.Fprintf(w, "job %s: %s\n", titleOf(j), strings.Join(doing(j, history[j.Name]), "; "))
		for _, remark := range j.Remarks {
			fmt.Fprintf(w, "  %s\n", remark)
		}
		if j.What != "" && j.State != page.Running && j.State != page.Over {
			fmt.Fprintf(w, "  %s\n", j.What)
		}
		printStalls(w, j)
		printGaps(w, j.Measures)
		if n := r.Hottest[j.Name]; len(n) > 0 {
			printHottest(w, n)
		}
	}
}

// printLost prints what counts lack; who comes before it.
func printLost(w io.Writer, who string, counters []page.Counter) {
	for _, c := range counters {
		// Answers that were not timed are missing in no count.
		if (c.Class == "lost" || who != "") && c.Events+c.Bytes > 0 && c.Reason != "untimed" {
			fmt.Fprintf(w, "  %slost: %s, %d times, %d bytes: %s\n", who, c.Reason, c.Events, c.Bytes, c.Help)
		}
	}
}

// harmless are reasons for which a measure is off on some connections that would gain nothing by it.
var harmless = []string{"same_host", "fast_link"}

// printGaps prints the measures that were asked for and do not hold everywhere, and what there
// is to do about others.
func printGaps(w io.Writer, lines []measure.Line) {
	var said []string // of the measure before
	for i := range lines {
		l := &lines[i]
		var gaps []string
		for k := range l.Not {
			g := &l.Not[k]
			fine := l.State == measure.Part && slices.Contains(harmless, g.Reason)
			if g.Reason != measure.NotSet && !fine && (l.Setting != "" || g.Do != "") {
				gaps = append(gaps, g.String())
			}
		}
		// Nobody has asked for compact, so what keeps connections from the proxy is said once.
		again := l.Measure == measure.Compact && slices.Equal(gaps, said)
		if len(gaps) > 0 && l.State != measure.On && !again {
			said = gaps
			fmt.Fprintf(w, "  %s: %s\n", l.Measure, l)
			for _, g := range gaps {
				fmt.Fprintf(w, "    %s\n", g)
			}
		}
	}
}

// doing says in a few parts what a job is doing and what psidecar does for it.
func doing(j *page.Job, h page.History) []string {
	state := cmp.Or(j.State, "seen")
	parts := []string{fmt.Sprintf("%s, %d servers, %d workers, %.1f steps/s", state, j.Servers, j.Workers, j.StepsPerSecond)}
	var on []string
	for i := range j.Measures {
		if l := &j.Measures[i]; l.State != measure.Off && l.Measure != measure.Observe && l.Measure != measure.Carry {
			on = append(on, settingOf(l))
		}
	}
	if len(on) > 0 {
		parts = append(parts, strings.Join(on, ", "))
	}
	left, saved, carried := moved(h)
	switch {
	case left == 0:
		return parts
	case !carried || saved < left/200: // the figures of both would be alike
		return append(parts, fmt.Sprintf("%s between hosts in the last hour", page.BytesText(left)))
	}
	parts = append(parts, fmt.Sprintf("%s between hosts instead of %s in the last hour", page.BytesText(max(0, left-saved)), page.BytesText(left)))
	switch times := faster(h); {
	case times > 0 && times < 0.95:
		parts = append(parts, fmt.Sprintf("slower than before that: %.1f times as fast, so it does not wait for its links", times))
	case times > 0:
		parts = append(parts, fmt.Sprintf("%.1f times as fast as before that", times))
	default:
		parts = append(parts, "whether that is faster is not known, since it has not run without")
	}
	return parts
}

// settingOf names a measure and how it is set: threshold 0.99, compact (--codec auto).
func settingOf(l *measure.Line) string {
	if own, is := strings.CutPrefix(l.Setting, "--"+l.Measure); is {
		return l.Measure + own
	}
	if l.Setting == "" {
		return l.Measure
	}
	return fmt.Sprintf("%s (%s)", l.Measure, l.Setting)
}

// moved sums the bytes of a history that left their hosts, and how many fewer the proxies sent.
func moved(h page.History) (left, saved float64, carried bool) {
	for i := range h.Points {
		p := &h.Points[i]
		seconds := p.To.Sub(p.From).Seconds()
		if p.LeftHostPerSecond != nil {
			left += *p.LeftHostPerSecond * seconds
		}
		if p.SavedPerSecond != nil {
			saved += *p.SavedPerSecond * seconds
			carried = true
		}
	}
	return left, saved, carried
}

// faster returns how many times as many steps per second a job does in the stretches in which
// bytes were saved as in those before; 0: it has not run in both, for three stretches each.
func faster(h page.History) float64 {
	var steps, seconds [2]float64
	var stretches [2]int
	for i := range h.Points {
		p := &h.Points[i]
		if p.StepsPerSecond <= 0 || p.LeftHostPerSecond == nil {
			continue
		}
		saving := 0
		if p.SavedPerSecond != nil && *p.SavedPerSecond > 0.01**p.LeftHostPerSecond {
			saving = 1
		}
		if saving == 0 && stretches[1] > 0 { // later, such as when a measure was turned off
			continue
		}
		took := p.To.Sub(p.From).Seconds()
		steps[saving] += p.StepsPerSecond * took
		seconds[saving] += took
		stretches[saving]++
	}
	if stretches[0] < 3 || stretches[1] < 3 {
		return 0
	}
	return steps[1] / seconds[1] / (steps[0] / seconds[0])
}
