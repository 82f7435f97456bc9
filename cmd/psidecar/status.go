package main

import (
	"encoding/json"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/draw"
	"github.com/psidecar/psidecar/proxy"
)

// statusReport is what status --json prints. Its fields are an interface that users' scripts
// read.
type statusReport struct {
	Agent page.Agent `json:"agent"`
	Jobs  []page.Job `json:"jobs"`
	// Named are the names of the hottest keys of jobs whose keys have any.
	Named map[string][]page.HotKey `json:"hottest,omitempty"`
	Alpha map[string]page.Alpha    `json:"alpha,omitempty"` // by the job's name
	Proxy *proxy.State             `json:"proxy,omitempty"`

	history map[string]page.History // the last hour, by job
}

// newStatusCommand returns psidecar status. It asks pages only and needs no rights. A part that
// cannot be asked is an error; names and alpha that cannot be had are left out.
func newStatusCommand(e env) *cobra.Command {
	var agent, proxyURL string
	var asJSON, links bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what jobs are doing, what psidecar saves, what is wrong and what to do",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var report statusReport
			if agent == "" && proxyURL == "" {
				return cli.Usagef("nobody to ask: set --agent or --proxy")
			}
			if proxyURL != "" {
				report.Proxy = &proxy.State{}
				if err := client.Get(cmd.Context(), proxyURL, "/api/v1/connections", nil, report.Proxy); err != nil {
					return err
				}
			}
			if agent == "" {
				return printReport(e.stdout, report, asJSON, true)
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
			report.Alpha = client.Alphas(cmd.Context(), agent, report.Jobs)
			// An agent and a proxy in one process: the agent's page has the connections too.
			if report.Agent.Proxy && report.Proxy == nil { // psidecar up
				report.Proxy = &proxy.State{}
				if err := client.Get(cmd.Context(), agent, "/api/v1/connections", nil, report.Proxy); err != nil {
					return err
				}
			}
			if !links && !asJSON {
				report.history = client.Histories(cmd.Context(), agent, report.Jobs)
			}
			return printReport(e.stdout, report, asJSON, links || proxyURL != "")
		},
	}
	cmd.Flags().StringVar(&agent, "agent", client.AgentURL, "URL of the agent or planner; empty: none")
	cmd.Flags().StringVar(&proxyURL, "proxy", "", "URL of a proxy to include, such as http://127.0.0.1:9813")
	cmd.Flags().BoolVar(&links, "links", false, "show everything: nodes, measures and each connection")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printReport prints a report as JSON or text. Columns of agent and proxy share one tabwriter,
// so that they line up.
func printReport(out io.Writer, r statusReport, asJSON, links bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if r.Agent.Host != "" {
		if p := r.Agent.Planner; p != nil && !p.Connected {
			p.Error = client.PlannerProblem(p.Address, p.Error)
		}
		s := draw.Status{Agent: r.Agent, Jobs: r.Jobs, Hottest: r.Named, Alpha: r.Alpha}
		if links {
			s.Print(w)
		} else {
			s.Brief(w, r.history)
		}
	}
	if r.Proxy != nil && links {
		r.Proxy.Print(w, !r.Agent.Proxy)
	}
	return w.Flush()
}
