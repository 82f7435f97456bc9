package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/page"
)

// An Output prints what the demo finds: a row or a JSON object for each phase on Stdout,
// everything else on Stderr. Its methods are called from the demo's goroutine, one at a time.
type Output struct {
	Stdout, Stderr io.Writer
	// Terminal is Stderr without a filter. If it is a terminal, progress is drawn there in
	// place.
	Terminal io.Writer
	// Draw draws a heatmap on Stdout.
	Draw func(page.Heatmap) error
	JSON bool
	Hold bool // wait at the end until the context ends

	live    *cli.LiveLine // what happens right now; cleared before anything else is printed
	url     string        // of the page
	results []Result      // of all phases so far, for the verdict
}

// Run runs the demo and prints what it finds.
func (d *Output) Run(ctx context.Context, o Options) error {
	d.live = cli.NewLiveLine(d.Terminal, d.Stderr)
	// Progress is drawn in place on a terminal, so it is cleared on every way out.
	defer d.live.Clear()
	o.Page, o.Say, o.Observed = d.opened, d.live.Say, d.observed
	_, o.Repeat = cli.Columns(d.Terminal)
	if !d.JSON {
		fmt.Fprintln(d.Stdout, o.LinkText(runtime.NumCPU()))
		o.Heatmap = func(when string, h page.Heatmap) error {
			d.live.Clear()
			h.Job = when
			return d.Draw(h)
		}
	}
	return Run(ctx, o, d.report)
}

// opened reports where the page is. It is called once, before the first phase.
func (d *Output) opened(url string) {
	d.url = url
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
		fmt.Fprintln(d.Stdout, Columns())
	}
	base := &d.results[0]
	if h := r.Home; h != nil {
		base = h
		fmt.Fprintln(d.Stdout, "           another job, whose hot keys wander; first with all keys at home:")
		fmt.Fprintln(d.Stdout, h.Row("at home", base))
	}
	if _, err := fmt.Fprintln(d.Stdout, r.Row(r.Phase, base)); err != nil {
		return err
	}
	if r.ObservedByAgents > 0 {
		fmt.Fprintf(d.Stdout, "           the workers say %d accesses of keys, the agents estimate %d\n", r.Accesses, r.ObservedByAgents)
	}
	return nil
}

// LinkText says how fast links are, and what that stands for.
func (o *Options) LinkText(cores int) string {
	if o.Rate == 0 {
		return "Links are as fast as this machine."
	}
	share := CoresOf(cores, o.Hosts)
	return fmt.Sprintf("A host has %.2g of a core (%d cores, %d hosts) and a link of %d Mbit/s: %.0f Mbit/s a core, as a host of 32 cores has with %.0f Mbit/s.",
		share, cores, o.Hosts, o.Rate/1e6, float64(o.Rate)/1e6/share, 32*float64(o.Rate)/1e6/share)
}

// observed prints the verdict. With Hold it then blocks until ctx ends, while
// the hosts, their agents and the page are still there.
func (d *Output) observed(ctx context.Context) error {
	d.live.Clear()
	out := d.Stdout
	if d.JSON {
		out = d.Stderr // objects alone are JSON
	}
	if sentence := Verdict(d.results); sentence != "" {
		fmt.Fprintln(out, sentence)
	}
	if !d.Hold {
		return nil
	}
	fmt.Fprintf(d.Stderr, "page: %s (press Ctrl-C to stop)\n", d.url)
	<-ctx.Done()
	return nil
}
