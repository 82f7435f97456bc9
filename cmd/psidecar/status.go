package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/draw"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/codec/shared"
)

// statusReport is what status --json prints.
type statusReport struct {
	Agent page.Agent `json:"agent"`
	Jobs  []page.Job `json:"jobs"`
	// Named are the names of the hottest keys of jobs whose keys have any.
	Named map[string][]page.HotKey `json:"hottest,omitempty"`
	Proxy *proxy.State             `json:"proxy,omitempty"`
}

func newStatusCommand(e env) *cobra.Command {
	var agent, proxyURL string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the jobs that an agent watches, what it costs and misses, and a proxy's connections",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var report statusReport
			if proxyURL != "" {
				report.Proxy = &proxy.State{}
				if err := client.Get(cmd.Context(), proxyURL, "/api/v1/connections", nil, report.Proxy); err != nil {
					return err
				}
			}
			if agent == "" {
				return printReport(e.stdout, report, asJSON)
			}
			var jobs page.Jobs
			if err := client.Get(cmd.Context(), agent, "/api/v1/jobs", nil, &jobs); err != nil {
				return err
			}
			if err := client.Get(cmd.Context(), agent, "/api/v1/agent", nil, &report.Agent); err != nil {
				return err
			}
			report.Jobs = jobs.Jobs
			report.Named = client.HottestKeys(cmd.Context(), agent, report.Jobs, shownHottest)
			if report.Agent.Proxy && report.Proxy == nil { // psidecar up
				report.Proxy = &proxy.State{}
				if err := client.Get(cmd.Context(), agent, "/api/v1/connections", nil, report.Proxy); err != nil {
					return err
				}
			}
			return printReport(e.stdout, report, asJSON)
		},
	}
	cmd.Flags().StringVar(&agent, "agent", client.AgentURL, "URL of the agent or planner to ask; empty: none")
	cmd.Flags().StringVar(&proxyURL, "proxy", "", "URL of a proxy to ask too, such as http://127.0.0.1:9813")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printReport(out io.Writer, r statusReport, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if r.Agent.Host != "" {
		printWatching(w, r)
	}
	if r.Proxy != nil {
		printProxy(w, r.Proxy, !r.Agent.Proxy)
	}
	return w.Flush()
}

func printWatching(w io.Writer, r statusReport) {
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
		printHottest(w, r.Named[r.Jobs[i].Name])
	}
}

// printHosts prints what a planner says of those who report to it.
func printHosts(w io.Writer, a *page.Agent) {
	fmt.Fprintf(w, "planner on %s, up %s, %s: %.1f%% of a core and %.1f%% in the kernels, %d MiB in all\n",
		a.Host, time.Since(a.Started).Round(time.Second), draw.Reporting(len(a.Hosts)), a.CPUPercent, a.KernelPercent, a.MemoryBytes>>20)
	for _, h := range a.Hosts {
		fmt.Fprintf(w, "  %s\t%.1f%% + %.1f%%\t%d MiB\tkeys of one in %d requests\t%s ago\n",
			h.Host, h.CPUPercent, h.KernelPercent, h.MemoryBytes>>20, h.SampledOneIn, time.Since(h.Reported).Round(time.Second))
		for _, c := range h.Lost {
			fmt.Fprintf(w, "    lost: %s, %d times, %d bytes: %s\n", c.Reason, c.Events, c.Bytes, c.Help)
		}
	}
}

func printAgent(w io.Writer, a *page.Agent) {
	fmt.Fprintf(w, "agent on %s, up %s, %.1f%% of a core and %.1f%% in the kernel, %d MiB, keys of one in %d requests\n",
		a.Host, time.Since(a.Started).Round(time.Second), a.CPUPercent, a.KernelPercent, a.MemoryBytes>>20, a.Sampling.OneIn)
	if s := a.Sampling; s.OverBudget {
		fmt.Fprintf(w, "looking at keys takes %.1f%% of a core, more than the budget of %.1f%%: the keys of a step every few seconds are looked at whatever that takes (--cpu-budget)\n",
			s.CostPercent, s.BudgetPercent)
	}
	if p := a.Planner; p != nil {
		state := fmt.Sprintf("%d reports taken", p.Reports)
		if !p.Connected {
			state = "not connected: " + client.PlannerProblem(p.Address, p.Error)
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

// printAdoption shows which connections were brought to the proxy, and why others were
// not.
func printAdoption(w io.Writer, s *page.Adoption) {
	if s == nil {
		return
	}
	past := 0
	for _, n := range s.Past {
		past += n
	}
	fmt.Fprintf(w, "adopted: %d connections that had gone past the proxy; %d go past it now\n", s.Adopted, past)
	for _, why := range slices.Sorted(maps.Keys(s.Past)) {
		fmt.Fprintf(w, "  not adopted: %s\t%d\n", why, s.Past[why])
	}
}

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
	if s := j.Sampling; s != nil && s.Sampled < s.Requests {
		fmt.Fprintf(w, "  keys of one in %d requests looked at, of %d of %d so far: a count of 1000 is right to about %.0f%%\n",
			s.OneIn, s.Sampled, s.Requests, s.ErrorPercent)
	}
	if c := j.Connections; c.Unsynced+c.Unplaced > 0 || c.Missed > 0 {
		fmt.Fprintf(w, "  connections: %d followed, %d not yet, %d of unknown ends; %d bytes had passed before\n",
			c.Synced, c.Unsynced, c.Unplaced, c.Missed)
	}
	printMeasures(w, j.Measures)
	for _, n := range j.Nodes {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", n.Name, n.Address, n.RankFrom, podOf(n))
	}
}

// titleOf is what a job is called, with its scheduler's address.
func titleOf(j *page.Job) string {
	if j.Called == "" {
		return j.Name
	}
	return fmt.Sprintf("%s at %s", j.Called, j.Name)
}

// shownStalls is how many of a job's stalls are shown in the terminal.
const shownStalls = 8

// printStalls prints who does not go on, but for the one that has been told.
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

// printProxy shows a proxy's connections, with the bytes that the job
// exchanged and those that took their place on the network.
// measures: its lines on jobs' measures too, which psidecar up has with the jobs.
func printProxy(w io.Writer, s *proxy.State, measures bool) {
	fmt.Fprintf(w, "\nproxy %s, %d connections of %d carried\n", s.Instance, len(s.Connections), s.Carried)
	for _, why := range slices.Sorted(maps.Keys(s.Errors)) {
		fmt.Fprintf(w, "  failed: %s\t%d\n", why, s.Errors[why])
	}
	for _, j := range s.Jobs {
		if j.Trouble != "" {
			fmt.Fprintf(w, "  job %s: %s\n", j.Job, j.Trouble)
		}
		if j.LostStore != "" {
			waits := ""
			if !j.Ready {
				waits = "; this host knows neither, and its requests wait"
			}
			fmt.Fprintf(w, "  job %s, run %s: %s%s\n", j.Job, j.Run.Short(), j.LostStore, waits)
		}
	}
	if measures {
		printMeasuresByJob(w, s.Measures)
	}
	if f := s.StateFolder; f != nil {
		for _, lost := range f.Lost {
			fmt.Fprintf(w, "  state of a job is damaged: %s\n", lost)
		}
	}
	if g := s.Guard; g != nil && g.Closed+g.Pending > 0 {
		fmt.Fprintf(w, "  connects fail without this proxy in %d cgroups; in %d that is still to be changed\n", g.Closed, g.Pending)
		if g.Problem != "" {
			fmt.Fprintf(w, "    failed %d times: %s\n", g.Failed, g.Problem)
		}
	}
	for _, c := range s.Connections {
		codec := c.Codec
		if codec == "" {
			codec = "as it is"
		}
		fmt.Fprintf(w, "  %s\t%s -> %s\t%s\tsent %d as %d bytes\treceived %d as %d\n", c.Kind, c.Client, c.Destination, codec,
			c.ToFar.JobBytes, c.ToFar.FarBytes, c.ToJob.JobBytes, c.ToJob.FarBytes)
	}
	if s.Shared != nil {
		printShared(w, s.Shared)
	}
	if s.Aggregate != nil {
		printAggregate(w, s.Aggregate)
	}
	if s.Values != nil {
		printValues(w, s.Values)
	}
}

// printAggregate shows which pushes of this host's workers were summed, and why others
// were not.
func printAggregate(w io.Writer, c *aggregate.Counts) {
	fmt.Fprintf(w, "  pushes summed on this host: %d carried in %d sums, %d bytes spared; %d waited alone; %d lost with their carrier's connection; %d bytes kept now\n",
		c.Carried, c.Sums, c.SparedBytes, c.Alone, c.Lost, c.HeldBytes)
	for _, why := range slices.Sorted(maps.Keys(c.Passed)) {
		fmt.Fprintf(w, "    not summed: %s\t%d\n", why, c.Passed[why])
	}
}

// printShared shows what was sent once to hosts of which several processes pulled it.
func printShared(w io.Writer, c *shared.Counts) {
	if c.Sent+c.ReceivedBytes == 0 && len(c.Plain) == 0 {
		return
	}
	fmt.Fprintf(w, "  values that several workers of a host pull: %d bytes sent once, %d spared (%d answers); %d received; %d kept now\n",
		c.SentBytes, c.SparedBytes, c.Referred, c.ReceivedBytes, c.HeldBytes)
	for _, why := range slices.Sorted(maps.Keys(c.Plain)) {
		fmt.Fprintf(w, "    as they were: %s\t%d\n", why, c.Plain[why])
	}
}

// printValues shows what the codecs for values did, by codec.
func printValues(w io.Writer, v *proxy.ValuesState) {
	if len(v.Forms) == 0 && len(v.Rules) == 0 {
		return
	}
	fmt.Fprintf(w, "\nvalues: %d rules, %d values still wait, %d bytes for these and what is remembered\n", len(v.Rules), v.Waiting, v.StateBytes)
	fmt.Fprintln(w, "  codec\tlayers\tvalues\tsent\tbytes before\tafter\tratio")
	for _, f := range v.Forms {
		fmt.Fprintf(w, "  %s\t%d\t%d\t%d\t%d\t%d\t1/%.1f\n", f.Form, f.Layers, f.Values, f.Sent, f.Bytes, f.Encoded, float64(f.Bytes)/float64(max(f.Encoded, 1)))
	}
	for _, why := range slices.Sorted(maps.Keys(v.Reasons)) {
		fmt.Fprintf(w, "  %s\t%d times\n", why, v.Reasons[why])
	}
}
