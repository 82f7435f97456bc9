package proxy

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/codec/shared"
)

// Print writes the state of a proxy for people: its connections, with the bytes that the job
// exchanged and those that took their place on the network. Columns are separated by tabs.
// measures adds the lines on jobs' measures, which psidecar up prints with the jobs.
func (s *State) Print(w io.Writer, measures bool) {
	fmt.Fprintf(w, "\nproxy %s, %d connections of %d carried\n", s.Instance, len(s.Connections), s.Carried)
	for _, why := range slices.Sorted(maps.Keys(s.Errors)) {
		fmt.Fprintf(w, "  failed: %s\t%d\n", why, s.Errors[why])
	}
	for _, j := range s.Jobs {
		if j.Trouble != "" {
			fmt.Fprintf(w, "  job %s: %s\n", j.Job, j.Trouble)
		}
		// Whether requests wait depends on this host alone: one that knows where keys are
		// goes on.
		if j.LostStore != "" {
			waits := ""
			if !j.Ready {
				waits = "; unknown to this host: its requests wait"
			}
			fmt.Fprintf(w, "  job %s, run %s: %s%s\n", j.Job, j.Run.Short(), j.LostStore, waits)
		}
	}
	if measures {
		measure.PrintByJob(w, s.Measures)
	}
	if f := s.StateFolder; f != nil {
		for _, lost := range f.Lost {
			fmt.Fprintf(w, "  damaged state of a job: %s\n", lost)
		}
	}
	if g := s.Guard; g != nil && g.Closed+g.Pending > 0 {
		fmt.Fprintf(w, "  fail closed in %d cgroups; changes pending in %d\n", g.Closed, g.Pending)
		if g.Problem != "" {
			fmt.Fprintf(w, "    failed %d times: %s\n", g.Failed, g.Problem)
		}
	}
	for _, c := range s.Connections {
		fmt.Fprintf(w, "  %s\t%s -> %s\t%s\tsent %d as %d bytes\treceived %d as %d\n", c.Kind, c.Client, c.Destination, codecOf(&c),
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

// printAggregate writes which pushes of this host's workers were summed, and why others were
// not.
func printAggregate(w io.Writer, c *aggregate.Counts) {
	fmt.Fprintf(w, "  pushes summed on this host: %d carried in %d sums, %d carried in part, %d bytes saved; %d waited alone; %d lost with their carrier's connection; %d bytes held now\n",
		c.Carried, c.Sums, c.Partial, c.SparedBytes, c.Alone, c.Lost, c.HeldBytes)
	for _, why := range slices.Sorted(maps.Keys(c.Passed)) {
		fmt.Fprintf(w, "    not summed: %s\t%d\n", why, c.Passed[why])
	}
}

// printShared writes what was sent once to hosts where several processes pull the same.
func printShared(w io.Writer, c *shared.Counts) {
	if c.Sent+c.ReceivedBytes == 0 && len(c.Plain) == 0 {
		return
	}
	fmt.Fprintf(w, "  shared pulls: %d bytes sent once, %d saved (%d whole answers, %d by key); %d received; %d held now\n",
		c.SentBytes, c.SparedBytes, c.Referred, c.ByKey, c.ReceivedBytes, c.HeldBytes)
	for _, why := range slices.Sorted(maps.Keys(c.Plain)) {
		fmt.Fprintf(w, "    not shared: %s\t%d\n", why, c.Plain[why])
	}
}

// printValues writes what the codecs for values did, by codec.
func printValues(w io.Writer, v *ValuesState) {
	if len(v.Forms) == 0 && len(v.Rules) == 0 {
		return
	}
	fmt.Fprintf(w, "\nvalues: %d codec rules, %d values held back, %d bytes for residuals and remembered values\n", len(v.Rules), v.Waiting, v.StateBytes)
	fmt.Fprintln(w, "  codec\tlayers\tvalues\tsent\tbytes before\tafter\tratio")
	for _, f := range v.Forms {
		fmt.Fprintf(w, "  %s\t%d\t%d\t%d\t%d\t%d\t1/%.1f\n", f.Form, f.Layers, f.Values, f.Sent, f.Bytes, f.Encoded, float64(f.Bytes)/float64(max(f.Encoded, 1)))
	}
	for _, why := range slices.Sorted(maps.Keys(v.Reasons)) {
		fmt.Fprintf(w, "  unmodified: %s\t%d times\n", why, v.Reasons[why])
	}
}

// codecOf returns which codec a connection uses, or why its messages pass as they are.
func codecOf(c *ConnectionState) string {
	switch {
	case c.Codec == "":
		return "unmodified"
	case c.Unread == "":
		return c.Codec
	case c.Unread == unreadUnknown:
		return "unmodified: not a supported PS-lite dialect"
	}
	return "unmodified: messages of " + c.Unread + ", an unsupported PS-lite fork"
}
