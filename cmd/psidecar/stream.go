package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/prerun"
)

// streamFlags are the flags of psidecar partition --stream.
type streamFlags struct {
	on              bool
	memory, scratch string
	passes          int
}

// register adds the flags.
func (s *streamFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&s.on, "stream", false, "read the data several times instead of keeping it in memory")
	flags.StringVar(&s.memory, "memory", "1GiB", "with --stream: memory for tables and buffers in bytes (or KiB, MiB, GiB), in addition to reading and decompression")
	flags.IntVar(&s.passes, "passes", prerun.DefaultPasses, "with --stream: number of assignment passes over the data, after the counting pass")
	flags.StringVar(&s.scratch, "scratch", "", "with --stream: directory for temporary files (default: TMPDIR or /tmp)")
}

// unused returns a usage error for flags that mean nothing without --stream.
func (s *streamFlags) unused(cmd *cobra.Command) error {
	for _, name := range []string{"memory", "passes", "scratch"} {
		if cmd.Flags().Changed(name) {
			return cli.Usagef("--%s is for --stream only", name)
		}
	}
	return nil
}

// runStream is run for --stream. Flags that the streaming algorithm cannot honour are refused,
// rather than ignored, since the result would not be what was asked for.
func (f *partitionFlags) runStream(cmd *cobra.Command, e env) error {
	if err := f.check(); err != nil {
		return err
	}
	for _, name := range []string{"algorithm", "all", "time-budget", "theta", "capacity", "link-speed", "planner-http", "hosts", "rules", "plot", "from", "move-at-most", "resume"} {
		if cmd.Flags().Changed(name) {
			return cli.Usagef("--%s is not for --stream, which has one algorithm and balances equal machines", name)
		}
	}
	// Resolved here, since the task needs a folder that exists.
	if f.stream.scratch == "" {
		f.stream.scratch = os.TempDir()
	}
	memory, err := cli.ParseBytes(f.stream.memory)
	if err != nil {
		return cli.Usagef("--memory: %w", err)
	}
	t := prerun.StreamTask{K: f.k, Memory: memory, Passes: f.stream.passes, Scratch: f.stream.scratch}
	if err := t.Validate(); err != nil {
		return cli.Usagef("--stream: %w", err)
	}
	if t.Output, err = f.output(); err != nil {
		return err
	}
	if t.Input, err = f.openInput(e); err != nil {
		return err
	}
	r, err := t.Run(cmd.Context())
	if err != nil {
		return err
	}
	if f.json {
		if err := json.NewEncoder(e.stdout).Encode(r); err != nil {
			return fmt.Errorf("printing the report: %w", err)
		}
		return nil
	}
	if err := prerun.Table(e.stdout, []*prerun.Report{r}); err != nil {
		return err
	}
	return r.Streaming.Table(e.stdout)
}
