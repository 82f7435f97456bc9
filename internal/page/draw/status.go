package draw

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// A Status is the content of psidecar status.
type Status struct {
	Agent page.Agent
	Jobs  []page.Job
	// Hottest has the hottest keys of jobs whose keys have names, by job.
	Hottest map[string][]page.HotKey
	// Alpha says how sparsely jobs use their parameters, by job.
	Alpha map[string]page.Alpha
}

// Print writes the status for people, with columns separated by tabs. Write errors are ignored;
// the caller's writer keeps them.
func (r *Status) Print(w io.Writer) {
	a := r.Agent
	if a.Hosts != nil {
		printHosts(w, &a)
	} else {
		printAgent(w, &a)
	}
	if len(r.Jobs) == 0 {
		fmt.Fprintln(w, "no PS-lite job has been seen")
	}
	for i := range r.Jobs {
		printJob(w, &r.Jobs[i])
		printAlpha(w, r.Alpha[r.Jobs[i].Name])
		printHottest(w, r.Hottest[r.Jobs[i].Name])
	}
}

// printHosts prints the hosts that report to a planner, with what they lost.
func printHosts(w io.Writer, a *page.Agent) {
	fmt.Fprintf(w, "planner on %s, up %s, %s: %.1f%% of a core and %.1f%% in the kernels, %d MiB in all\n",
		a.Host, time.Since(a.Started).Round(time.Second), Reporting(len(a.Hosts)), a.CPUPercent, a.KernelPercent, a.MemoryBytes>>20)
	for _, h := range a.Hosts {
		fmt.Fprintf(w, "  %s\t%.1f%% + %.1f%%\t%d MiB\tkeys of %s\t%s ago\n",
			h.Host, h.CPUPercent, h.KernelPercent, h.MemoryBytes>>20, requestsOf(h.SampledOneIn), time.Since(h.Reported).Round(time.Second))
		for _, c := range h.Lost {
			fmt.Fprintf(w, "    lost: %s, %d times, %d bytes: %s\n", c.Reason, c.Events, c.Bytes, c.Help)
		}
	}
}

// printAgent prints an agent's cost, its link to the planner, and what it lost.
func printAgent(w io.Writer, a *page.Agent) {
	fmt.Fprintf(w, "agent on %s, up %s, %.1f%% of a core and %.1f%% in the kernel, %d MiB, keys of %s\n",
		a.Host, time.Since(a.Started).Round(time.Second), a.CPUPercent, a.KernelPercent, a.MemoryBytes>>20, requestsOf(a.Sampling.OneIn))
	s := a.Sampling
	if s.OverBudget {
		fmt.Fprintf(w, "watching takes %.1f%% of a core, above the budget of %.1f%% (--cpu-budget), although as little is inspected as can be\n",
			s.CostPercent, s.BudgetPercent)
	}
	if s.RestOf > 1 {
		fmt.Fprintf(w, "busy connections are watched 1/%d of the time, to stay within --cpu-budget: requests, steps and keys are estimates, bytes are not\n", s.RestOf)
	}
	if p := a.Planner; p != nil {
		state := fmt.Sprintf("%d reports taken", p.Reports)
		if !p.Connected {
			state = "not connected: " + p.Error
		}
		fmt.Fprintf(w, "planner at %s, %s\n", p.Address, state)
	}
	printAdoption(w, a.Adoption)
	for _, c := range a.Counters {
		if c.Class == "lost" && c.Events+c.Bytes > 0 {
			fmt.Fprintf(w, "lost: %s, %d times, %d bytes: %s\n", c.Reason, c.Events, c.Bytes, c.Help)
		}
	}
}

// printAdoption prints how many connections bypass the proxy, and why.
func printAdoption(w io.Writer, s *page.Adoption) {
	past := 0
	if s != nil {
		for why, n := range s.Past {
			if why != unheard {
				past += n
			}
		}
	}
	if past == 0 && (s == nil || s.Adopted+s.Left == 0) {
		return
	}
	fmt.Fprintf(w, "connections: %d direct; %d taken in by the proxy so far, %d let out again\n", past, s.Adopted, s.Left)
	printDirect(w, s, nil)
}

// directWhy says why connections are direct, by the reasons of agent/daemon.
var directWhy = map[string]string{
	page.FastLink: "the link is fast; taken in when it is the bottleneck",
	"both-ways":   "answers come on them, as BytePS's do, and their processes would abort; --codec compact or --save takes them in from the job's start",
	"no-proxy":    "no proxy of this host accepts their process's connections",
	"no-peer":     "no proxy listens at the other host; run psidecar up there",
	"busy":        "data is under way on them; tried again",
	"again":       "one to the same place was made anew lately; tried again",
	"loop":        "their process does not wait for them as libzmq does",
	"shared":      "their process has several descriptors for them",
	"forbidden":   "a debugger is attached to their process, or rights are missing; psidecar doctor says which",
	"failed":      "making them anew failed; see the agent's log",
	"not-closed":  "their process was to close them and has not",
}

// passing are the reasons that pass by themselves.
var passing = []string{"again", "busy"}

// unheard is the reason of connections on which nothing was sent from here: the other ends of those
// that count.
const unheard = "unheard"

// printDirect prints how many connections bypass the proxy, by why, but for some reasons.
func printDirect(w io.Writer, s *page.Adoption, except []string) {
	if s == nil {
		return
	}
	for _, why := range slices.Sorted(maps.Keys(s.Past)) {
		if s.Past[why] > 0 && why != unheard && !slices.Contains(except, why) {
			fmt.Fprintf(w, "  %d direct: %s\n", s.Past[why], cmp.Or(directWhy[why], why))
		}
	}
}

// requestsOf describes a sampling rate.
func requestsOf(oneIn uint32) string {
	if oneIn <= 1 {
		return "all requests"
	}
	return fmt.Sprintf("one in %d requests", oneIn)
}

// printJob prints a job's state, rates, measures and nodes.
func printJob(w io.Writer, j *page.Job) {
	state := ""
	if j.State != "" {
		state = ": " + j.State
	}
	fmt.Fprintf(w, "\njob %s (%s), %d servers, %d workers%s\n", titleOf(j), j.Dialect, j.Servers, j.Workers, state)
	for _, remark := range j.Remarks {
		fmt.Fprintf(w, "  %s\n", remark)
	}
	if j.What != "" {
		fmt.Fprintf(w, "  %s\n", j.What)
	}
	printStalls(w, j)
	keys := "keys"
	if j.KeysAtLeast {
		keys = "keys or more"
	}
	fmt.Fprintf(w, "  %.1f steps/s\t%.1f MB/s\t%d %s", j.StepsPerSecond, j.BytesPerSecond/1e6, j.DistinctKeys, keys)
	if j.Latency.Count > 0 {
		fmt.Fprintf(w, "\tp50 %.2f ms\tp99 %.2f ms", 1e3*j.Latency.P50, 1e3*j.Latency.P99)
	}
	fmt.Fprintln(w)
	// Only where something was left out: otherwise counts are exact, and there is nothing to
	// say about them.
	if s := j.Sampling; s != nil && s.Sampled < s.Requests {
		accuracy := fmt.Sprintf("a count of 1000 is accurate to about %.0f%%", s.ErrorPercent)
		if s.ErrorPercent >= 100 {
			accuracy = "too few as yet for counts of single keys"
		}
		fmt.Fprintf(w, "  keys of %s inspected now, of %d of %d so far: %s\n", requestsOf(s.OneIn), s.Sampled, s.Requests, accuracy)
	}
	if c := j.Connections; c.Unsynced+c.Unplaced > 0 || c.Missed > 0 {
		fmt.Fprintf(w, "  connections: %d synced, %d unsynced, %d with unknown ends; %d bytes had passed before\n",
			c.Synced, c.Unsynced, c.Unplaced, c.Missed)
	}
	measure.Print(w, j.Measures)
	for _, n := range j.Nodes {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", n.Name, n.Address, n.RankFrom, podOf(n))
	}
}

// printAlpha prints which fraction of a job's parameters a worker uses in a step.
func printAlpha(w io.Writer, a page.Alpha) {
	if a.Workers == 0 || a.Alpha == 0 {
		return
	}
	more := ""
	if a.AtMost {
		more = " or less"
	}
	fmt.Fprintf(w, "  alpha %s%s: share of %s of values that a worker uses per step\n", ShareText(a.Alpha), more, page.BytesText(a.Bytes))
}

// ShareText formats a fraction with three digits.
func ShareText(share float64) string { return strconv.FormatFloat(share, 'g', 3, 64) }

// titleOf returns a job's name and scheduler address.
func titleOf(j *page.Job) string {
	if j.Called == "" {
		return j.Name
	}
	return fmt.Sprintf("%s at %s", j.Called, j.Name)
}

// shownStalls bounds the stalls of a job that are printed.
const shownStalls = 8

// printStalls prints the stalls, except the one that the job's description has already, and
// then stragglers without a stall.
func printStalls(w io.Writer, j *page.Job) {
	left := 0
	for i, s := range j.Stalls {
		switch {
		case strings.HasSuffix(j.What, s.Text):
		case i >= shownStalls:
			left++
		case s.Kind == "late" || s.Kind == "straggling":
			fmt.Fprintf(w, "  %s\n", s.Text)
		default:
			fmt.Fprintf(w, "  for %.0f s: %s\n", s.Seconds, s.Text)
		}
	}
	for _, name := range j.Stragglers {
		if !slices.ContainsFunc(j.Stalls, func(s page.Stall) bool { return s.Who == name }) {
			fmt.Fprintf(w, "  %s lags\n", name)
		}
	}
	if left > 0 {
		fmt.Fprintf(w, "  and %d more like these\n", left)
	}
}

// printHottest prints the hottest keys in one line, by name if they have one.
func printHottest(w io.Writer, hottest []page.HotKey) {
	var all []string
	for _, k := range hottest {
		name := k.Name
		if name == "" {
			name = "key " + k.Text
		}
		all = append(all, fmt.Sprintf("%s (%d)", name, k.Accesses))
	}
	if len(all) > 0 {
		fmt.Fprintf(w, "  hottest keys (uses): %s\n", strings.Join(all, ", "))
	}
}

// podOf returns the name of a node's pod, or its UID.
func podOf(n page.Node) string {
	if p := n.PodName; p != nil {
		return p.Namespace + "/" + p.Name
	}
	return n.Pod
}
