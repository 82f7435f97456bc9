// Command job is a node of a job that uses PS-lite as one of the patterns of test/matrix does. The DMLC_* variables say
// which node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/matrix/pattern"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	name := flag.String("pattern", "", "name of the pattern")
	wait := flag.Duration("wait", 10*time.Minute, "timeout for any wait")
	var o pattern.Options
	flag.StringVar(&o.While, "while", "", "make rounds for as long as this file exists")
	flag.DurationVar(&o.Pause, "pause", 0, "how long a round takes at least")
	flag.BoolVar(&o.Exact, "exact", false, "check each pull")
	flag.IntVar(&o.Again, "again", 1, "how often all values are pulled at the end")
	flag.IntVar(&o.Rounds, "steps", 0, "rounds at least (default: the pattern's)")
	flag.StringVar(&o.Out, "out", "", "folder for what workers end with; empty: they compare it themselves, and all make --steps rounds")
	flag.Parse()
	p := pattern.Find(*name)
	if p == nil {
		return fmt.Errorf("no pattern is called %q", *name)
	}
	c, err := van.FromEnvironment(os.LookupEnv)
	if err != nil {
		return err
	}
	c.Patience = *wait
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	switch err := p.Run(context.Background(), c, o); {
	case errors.Is(err, pattern.ErrLeft):
		return nil
	case err != nil || c.Role != pslite.Worker:
		return err
	}
	_, err = fmt.Printf("{\"checked\":%d}\n", len(p.Keys))
	return err
}
