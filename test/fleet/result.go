package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// A Result is what --json prints. Times are seconds.
type Result struct {
	Hosts     int      `json:"hosts"`
	Jobs      int      `json:"jobs"`
	Keys      uint64   `json:"keys"`
	Dense     bool     `json:"dense"`
	Every     float64  `json:"report_every"`
	Hot       int      `json:"hot_keys"`
	Window    int      `json:"window_keys"`
	Start     Span     `json:"start"`
	Steady    Load     `json:"steady"`
	Shifts    []Shift  `json:"shifts"`
	Restart   *Restart `json:"restart,omitempty"`
	PeakBytes uint64   `json:"peak_bytes"`      // resident memory of the planner
	Error     string   `json:"error,omitempty"` // what ended the run before its end
}

// A Span is when the first, half and the last of the hosts were there.
type Span struct {
	First float64 `json:"first"`
	Half  float64 `json:"half"`
	Last  float64 `json:"last"`
}

// A Load is what the planner takes. In is what hosts send to it.
type Load struct {
	Seconds          float64 `json:"seconds"`
	Cores            float64 `json:"cores"`
	ResidentBytes    uint64  `json:"resident_bytes"`
	InPerSecond      float64 `json:"in_bytes_per_second"`
	OutPerSecond     float64 `json:"out_bytes_per_second"`
	ReportsPerSecond float64 `json:"reports_per_second"`
}

// A Shift is what came of workers that turned to other keys.
type Shift struct {
	Hosts int `json:"hosts"`
	Keys  int `json:"keys"`
	Known int `json:"known"` // keys of which all proxies knew at the end that they are there
	// First is when every proxy had the first plan for such keys, Half and Most when
	// plans for half of them and nine tenths; 0: not within the patience.
	First float64 `json:"first"`
	Half  float64 `json:"half"`
	Most  float64 `json:"most"`
	Cores float64 `json:"cores"`
}

// A Restart is how the fleet came back after kill -9 of the planner.
type Restart struct {
	Back          Span    `json:"back"`
	BusiestSecond int     `json:"connections_in_the_busiest_second"`
	Connections   int     `json:"connections"`
	InBytes       uint64  `json:"in_bytes"`
	OutBytes      uint64  `json:"out_bytes"`
	CPUSeconds    float64 `json:"cpu_seconds"`
	Same          bool    `json:"same_plans"`
}

// Print writes the result for people.
func (r *Result) Print(w io.Writer) error {
	kind := "hashed"
	if r.Dense {
		kind = "dense"
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	line("fleet", "%d hosts, %d jobs of %d %s keys each, a report every %.1f s", r.Hosts, r.Jobs, r.Keys, kind, r.Every)
	if r.Start.Last > 0 {
		line("all hosts known", "%.1f s after the planner's start", r.Start.Last)
	}
	if r.Steady.Seconds > 0 {
		line("processor", "%.2f cores, %.0f reports/s", r.Steady.Cores, r.Steady.ReportsPerSecond)
		line("memory", "%d MiB, at most %d", r.Steady.ResidentBytes>>20, max(r.PeakBytes, r.Steady.ResidentBytes)>>20)
		line("network", "%.2f MB/s in, %.2f MB/s out", r.Steady.InPerSecond/1e6, r.Steady.OutPerSecond/1e6)
	}
	for i, s := range r.Shifts {
		line(fmt.Sprintf("shift %d", i+1), "%d hosts, %d keys: first plan at every proxy %s, half of the keys %s, nine tenths %s; %d keys, %.2f cores",
			s.Hosts, s.Keys, orNot(s.First), orNot(s.Half), orNot(s.Most), s.Known, s.Cores)
	}
	if b := r.Restart; b != nil {
		line("after kill -9", "all hosts back after %.1f s (the first %.1f, half %.1f), %d connections, %d in the busiest second", b.Back.Last, b.Back.First, b.Back.Half, b.Connections, b.BusiestSecond)
		line("", "%.1f MB in, %.1f MB out, %.1f s of processor; plans are %s", float64(b.InBytes)/1e6, float64(b.OutBytes)/1e6, b.CPUSeconds, sameOr(b.Same))
	}
	if r.Error != "" {
		line("ended early", "%s", r.Error)
	}
	return t.Flush()
}

func orNot(seconds float64) string {
	if seconds == 0 {
		return "not in time"
	}
	return fmt.Sprintf("after %.1f s", seconds)
}

func sameOr(same bool) string {
	if same {
		return "the same"
	}
	return "NOT the same"
}
