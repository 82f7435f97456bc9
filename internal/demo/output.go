package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"

	"github.com/psidecar/psidecar/internal/cli"
)

// An Output prints what the demo finds: a row or a JSON object for each phase on Stdout,
// everything else on Stderr. Its methods are called from the demo's goroutine, one at a time.
type Output struct {
	Stdout, Stderr io.Writer
	// Terminal is Stderr without a filter. If it is a terminal, progress is drawn there in
	// place.
	Terminal io.Writer
	JSON     bool
	Hold     bool // wait at the end until the context ends

	live    *cli.LiveLine // what happens right now; cleared before anything else is printed
	page    string        // URL
	results []Result      // of all phases so far, for the verdict
}

// Run runs the demo and prints what it finds.
func (d *Output) Run(ctx context.Context, o Options) error {
	d.live = cli.NewLiveLine(d.Terminal, d.Stderr)
	// Progress is drawn in place on a terminal, so it is cleared on every way out.
	defer d.live.Clear()
	o.Page, o.Say, o.Observed = d.opened, d.live.Say, d.observed
	return Run(ctx, o, d.report)
}

// opened reports where the page is. It is called once, before the first phase.
func (d *Output) opened(url string) {
	d.page = url
	d.live.Clear()
	fmt.Fprintf(d.Stderr, "page: %s (shows the job from the second phase on)\n", url)
}

// report prints one phase when it is over. An error ends the demo: nobody reads what is
// printed.
func (d *Output) report(r Result) error {
	d.live.Clear()
	d.results = append(d.results, r)
	if d.JSON {
		return json.NewEncoder(d.Stdout).Encode(r)
	}
	// The header comes with the first row: a demo that fails before prints no empty table.
	if len(d.results) == 1 {
		if _, err := fmt.Fprintln(d.Stdout, Columns()); err != nil {
			return err
		}
	}
	if h := r.Home; h != nil {
		fmt.Fprintln(d.Stdout, "           another job, whose hot keys wander; first with all keys at home:")
		if _, err := fmt.Fprintln(d.Stdout, h.Row("at home")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(d.Stdout, r.Row(r.Phase))
	if err == nil && r.ObservedByAgents > 0 {
		_, err = fmt.Fprintf(d.Stdout, "           the workers say %d accesses of keys, the agents counted %d\n", r.Accesses, r.ObservedByAgents)
	}
	return err
}

// observed prints the verdict over all phases. With Hold it then blocks until ctx ends, while
// the hosts, their agents and the page are still there.
func (d *Output) observed(ctx context.Context) error {
	d.live.Clear()
	out := d.Stdout
	if d.JSON {
		out = d.Stderr // objects alone are JSON
	}
	for _, sentence := range Verdict(d.results, runtime.NumCPU()) {
		fmt.Fprintln(out, sentence)
	}
	if !d.Hold {
		return nil
	}
	fmt.Fprintf(d.Stderr, "page: %s (press Ctrl-C to stop)\n", d.page)
	<-ctx.Done()
	return nil
}
