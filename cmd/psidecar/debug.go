package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
)

// newDebugCommand returns psidecar debug. Parts that do not answer are no failure, since a part
// that is gone is often the reason for a bundle: the exit code is 0 unless the file cannot be
// written.
func newDebugCommand(e env) *cobra.Command {
	var out, agent, proxy, planner string
	var each time.Duration
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Collect diagnostic data for a bug report in one file",
		Long: `Collect diagnostic data in one compressed tar file: the version, the results of
doctor, the state and metrics of agent, proxy and planner, and from an agent
with --pprof its stacks and heap profile. missing.txt lists data that could not
be collected. The file contains addresses, job names and counts by key, but no
parameter values and no arguments or environment of any process.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now().UTC()
			folder := "psidecar-debug-" + now.Format("20060102-150405")
			if out == "" {
				out = folder + ".tar.gz"
			}
			sources := client.BundleSources(cli.VersionOf(version), agent, proxy, planner)
			// To a pipe it goes as it is: the filter for terminals would damage it.
			if out == "-" {
				missing, err := client.WriteBundle(cmd.Context(), e.bareOut, folder, each, sources)
				tellMissing(e, missing)
				return err
			}
			// Names of jobs and addresses are for the user alone, and no file, nor what a link
			// in a shared folder points at, is overwritten.
			f, err := os.OpenFile(out, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return fmt.Errorf("--out: %w", err)
			}
			missing, err := client.WriteBundle(cmd.Context(), f, folder, each, sources)
			// Half a bundle could be taken for a whole one.
			if err = errors.Join(err, f.Close()); err != nil {
				return errors.Join(err, os.Remove(out))
			}
			tellMissing(e, missing)
			_, err = fmt.Fprintln(e.stdout, out)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&out, "out", "", "output file, which must not exist; -: standard output (default: psidecar-debug-TIME.tar.gz)")
	flags.StringVar(&agent, "agent", client.AgentURL, "URL of the agent; empty: none")
	flags.StringVar(&proxy, "proxy", "http://127.0.0.1:9813", "URL of the proxy; empty: none")
	flags.StringVar(&planner, "planner-http", "http://127.0.0.1:9812", "URL of the planner's HTTP endpoint; empty: none")
	flags.DurationVar(&each, "patience", 20*time.Second, "timeout for each response")
	return cmd
}

// tellMissing lists the sources that are not in the bundle on standard error; missing.txt in it
// says the same.
func tellMissing(e env, missing []client.MissingSource) {
	for _, m := range missing {
		fmt.Fprintf(e.stderr, "not collected: %s: %v\n", m.Name, cli.Plainly(m.Err.Error()))
	}
}
