package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/page"
)

const (
	// checkAtOnce is how many addresses are asked at a time.
	checkAtOnce = 16
	// checkAnswer is how long an answer may take; checkAgain is between two rounds.
	checkAnswer, checkAgain = 5 * time.Second, time.Second
	// checkBody is how much of an answer that says no is read, in bytes.
	checkBody = 4 << 10
)

// checked is what one address of a part answered.
type checked struct {
	Part    string `json:"part"`
	Address string `json:"address"`
	OK      bool   `json:"ok"`
	Problem string `json:"problem,omitempty"`
}

// checkTarget is a part, and the HOST:PORT addresses at which it is asked; a name
// stands for all of its addresses.
type checkTarget struct {
	part  string
	names []string
}

func newCheckCommand(e env) *cobra.Command {
	targets := []checkTarget{{part: "agent"}, {part: "proxy"}, {part: "planner"}}
	var patience time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether agents, proxies and planners work, at all addresses of a name; exit code 1 where one does not",
		Long: `Asks each part whether every loop of it turns (/healthz) and whether it is ready
(/readyz), and each agent that has a planner whether that takes its reports. An agent
outside of Kubernetes is ready once it has found a job. A name that stands for several
addresses, as a headless Service's does, means all of them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkArguments(targets); err != nil {
				return err
			}
			results := checkUntil(cmd.Context(), targets, patience)
			return printChecked(e.stdout, results, asJSON)
		},
	}
	cmd.Flags().StringSliceVar(&targets[0].names, "agents", nil, "HOST:PORT of agents' pages, such as 127.0.0.1:9810")
	cmd.Flags().StringSliceVar(&targets[1].names, "proxies", nil, "HOST:PORT at which proxies show their state, such as 127.0.0.1:9813")
	cmd.Flags().StringSliceVar(&targets[2].names, "planners", nil, "HOST:PORT of planners' pages, such as planner-host:9812")
	cmd.Flags().DurationVar(&patience, "patience", 0, "how long to ask again until all is well")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func checkArguments(targets []checkTarget) error {
	given := false
	for _, t := range targets {
		for _, name := range t.names {
			given = true
			if host, port, err := net.SplitHostPort(name); err != nil || host == "" || port == "" {
				return usagef("%q: want HOST:PORT, of the part %s", name, t.part)
			}
		}
	}
	if !given {
		return usagef("there is nothing to check: give --agents, --proxies or --planners")
	}
	return nil
}

// checkUntil asks everybody, and again until all is well or patience has gone.
// What it returns is the last round.
func checkUntil(ctx context.Context, targets []checkTarget, patience time.Duration) []checked {
	end := time.Now().Add(patience)
	for {
		results := checkAll(ctx, targets)
		if !slices.ContainsFunc(results, func(c checked) bool { return !c.OK }) || time.Now().After(end) {
			return results
		}
		select {
		case <-ctx.Done():
			return results
		case <-time.After(checkAgain):
		}
	}
}

func checkAll(ctx context.Context, targets []checkTarget) []checked {
	var results []checked
	for _, t := range targets {
		for _, name := range t.names {
			host, port, _ := net.SplitHostPort(name) // as checkArguments has seen
			addresses, err := net.DefaultResolver.LookupHost(ctx, host)
			if err != nil {
				results = append(results, checked{t.part, name, false, err.Error()})
			}
			slices.Sort(addresses)
			for _, a := range slices.Compact(addresses) {
				results = append(results, checked{Part: t.part, Address: net.JoinHostPort(a, port)})
			}
		}
	}
	var g errgroup.Group
	g.SetLimit(checkAtOnce)
	for i := range results {
		if r := &results[i]; r.Problem == "" {
			g.Go(func() error {
				if err := checkOne(ctx, r.Part, r.Address); err != nil {
					r.Problem = err.Error()
				}
				r.OK = r.Problem == ""
				return nil
			})
		}
	}
	_ = g.Wait() // none of them returns an error
	return results
}

func checkOne(ctx context.Context, part, address string) error {
	ctx, cancel := context.WithTimeout(ctx, checkAnswer)
	defer cancel()
	for _, path := range []string{"/healthz", "/readyz"} {
		if err := askWell(ctx, "http://"+address+path); err != nil {
			return err
		}
	}
	if part != "agent" {
		return nil
	}
	var a page.Agent
	if err := ask(ctx, address, "/api/v1/agent", nil, &a); err != nil {
		return err
	}
	if a.Planner != nil && !a.Planner.Connected {
		return fmt.Errorf("the planner at %s does not take its reports: %s", a.Planner.Address, a.Planner.Error)
	}
	return nil
}

// askWell is an error where something else is answered than 200.
func askWell(ctx context.Context, where string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, checkBody))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", where, response.Status, strings.TrimSpace(string(text)))
	}
	return err
}

func printChecked(w io.Writer, results []checked, asJSON bool) error {
	bad := 0
	for _, r := range results {
		if !r.OK {
			bad++
		}
	}
	var err error
	if asJSON {
		err = json.NewEncoder(w).Encode(struct {
			OK    bool      `json:"ok"`
			Parts []checked `json:"parts"`
		}{bad == 0, results})
	} else {
		for _, r := range results {
			said := "ok     " + r.Part + " " + r.Address
			if !r.OK {
				said = "FAILED " + r.Part + " " + r.Address + ": " + r.Problem
			}
			_, wrong := fmt.Fprintln(w, said)
			err = errors.Join(err, wrong)
		}
	}
	if err == nil && bad > 0 {
		err = fmt.Errorf("%d of %d do not work", bad, len(results))
	}
	return err
}
