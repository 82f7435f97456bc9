package client

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/page"
)

const (
	// checkAtOnce is how many addresses are asked at a time.
	checkAtOnce = 16
	// checkAnswer is how long an answer may take; checkAgain is between two rounds.
	checkAnswer, checkAgain = 5 * time.Second, time.Second
	// checkBody is how much of an answer that says no is read, in bytes.
	checkBody = 4 << 10
)

// Checked is what one address of a part answered.
type Checked struct {
	Part    string `json:"part"`
	Address string `json:"address"`
	OK      bool   `json:"ok"`
	Problem string `json:"problem,omitempty"`
}

// CheckTarget is a part, and the HOST:PORT addresses at which it is asked; a name
// stands for all of its addresses.
type CheckTarget struct {
	Part  string
	Names []string
}

// CheckUntil asks everybody, and again until all is well or patience has gone.
// What it returns is the last round.
func CheckUntil(ctx context.Context, targets []CheckTarget, patience time.Duration) []Checked {
	end := time.Now().Add(patience)
	for {
		results := checkAll(ctx, targets)
		if !slices.ContainsFunc(results, func(c Checked) bool { return !c.OK }) || time.Now().After(end) {
			return results
		}
		select {
		case <-ctx.Done():
			return results
		case <-time.After(checkAgain):
		}
	}
}

func checkAll(ctx context.Context, targets []CheckTarget) []Checked {
	var results []Checked
	for _, t := range targets {
		for _, name := range t.Names {
			host, port, _ := net.SplitHostPort(name) // as the caller has seen
			addresses, err := net.DefaultResolver.LookupHost(ctx, host)
			if err != nil {
				results = append(results, Checked{t.Part, name, false, err.Error()})
			}
			slices.Sort(addresses)
			for _, a := range slices.Compact(addresses) {
				results = append(results, Checked{Part: t.Part, Address: net.JoinHostPort(a, port)})
			}
		}
	}
	var g errgroup.Group
	g.SetLimit(checkAtOnce)
	for i := range results {
		if r := &results[i]; r.Problem == "" {
			g.Go(func() error {
				if err := checkOne(ctx, r.Part, r.Address); err != nil {
					r.Problem = cli.Plainly(err.Error())
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
	if err := Get(ctx, address, "/api/v1/agent", nil, &a); err != nil {
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
