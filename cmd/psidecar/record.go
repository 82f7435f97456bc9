package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/internal/cli"
)

// newRecordCommand returns psidecar record. It needs the rights of an agent, except with
// --info, and may run beside one: watching takes nothing away from another watcher.
func newRecordCommand(e env) *cobra.Command {
	var (
		f         agentFlags
		out, info string
		span      time.Duration
		asJSON    bool
		force     bool
	)
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Record which keys each worker uses in each step",
		Long: `Record which keys each worker of this host's jobs pulls and pushes in each step,
at which server, and the bytes. Stops after --for, or on Ctrl-C or SIGTERM.
With --info, describe a recording instead.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case info != "" && out != "":
				return cli.Usagef("--info and --out exclude each other")
			case info != "":
				return recordInfo(e, info, asJSON)
			case out == "":
				return cli.Usagef("--out FILE or --info FILE is needed")
			}
			opts, err := f.Options(version)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			// --for ends a recording as Ctrl-C does, so neither is an error.
			if span > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, span)
				defer cancel()
			}
			// Ends in order when ctx does; what the kernel has copied by then is in the file.
			totals, err := agent.Record(ctx, opts, out, force)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(e.stdout).Encode(totals)
			}
			// The file is there all the same, and valid; a user who expects data in it is to be
			// told why there is none.
			if totals.Uses == 0 {
				fmt.Fprintln(e.stderr, "nothing was recorded: no job on this host pushed or pulled, or none that matches --cgroup, --pid and --job (psidecar status shows what an agent sees)")
			}
			_, err = fmt.Fprintf(e.stdout, "%s: %d uses of %d keys in all, %d dropped\n", out, totals.Uses, totals.Keys, totals.Dropped)
			return err
		},
	}
	f.watching(cmd)
	cmd.Flags().StringVar(&out, "out", "", "output file")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the output file")
	cmd.Flags().StringVar(&info, "info", "", "describe this recording")
	cmd.Flags().DurationVar(&span, "for", 0, "stop after this time")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// recordInfo prints what a recording holds. It reads all of it.
func recordInfo(e env, path string, asJSON bool) error {
	summary, err := agent.ReadRecording(path)
	switch {
	case err != nil:
		return err
	case asJSON:
		return json.NewEncoder(e.stdout).Encode(summary)
	}
	return summary.Print(e.stdout)
}
