package bpf

import (
	"fmt"
	"io"
)

// A ProbeReport is the output of psidecar doctor --json.
type ProbeReport struct {
	OK       bool      `json:"ok"` // the host has everything that watching needs
	Findings []Finding `json:"findings"`
	Facts    Facts     `json:"facts"`
}

// NewProbeReport judges facts.
func NewProbeReport(f Facts) ProbeReport {
	return ProbeReport{CheckWatching(f) == nil, CheckFacts(f), f}
}

// Print prints the findings, each with what to do where something is missing.
func (r *ProbeReport) Print(w io.Writer) error {
	for _, f := range r.Findings {
		mark := "ok     "
		if !f.OK {
			mark = "absent "
			if f.Needed {
				mark = "MISSING"
			}
		}
		if _, err := fmt.Fprintf(w, "%s %-16s %s\n", mark, f.Name, f.Found); err != nil {
			return err
		}
		if f.OK {
			continue
		}
		if _, err := fmt.Fprintf(w, "        %s\n        do: %s\n        without it: %s\n", f.Missing, f.Do, f.Without); err != nil {
			return err
		}
	}
	return nil
}
