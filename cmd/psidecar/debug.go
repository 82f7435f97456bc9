package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
)

// newDebugCommand returns psidecar debug. Parts that do not answer are no failure, since a part
// that is gone is often the reason for a bundle: the exit code is 0 unless the file cannot be
// written.
func newDebugCommand(e env) *cobra.Command {
	var out, agent, proxy, planner string
	var each time.Duration
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Collect what is needed to say what is the matter, in one file",
		Long: `Collect what is needed to say what is the matter, in one compressed tar file:
version, what doctor finds, and of agent, proxy and planner their state, metrics
and, from an agent with --pprof, stacks and memory. What cannot be had is named
in missing.txt. It holds addresses, names of jobs and counts by key, and no
value of any parameter, nor any process's arguments or environment.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now().UTC()
			folder := "psidecar-debug-" + now.Format("20060102-150405")
			if out == "" {
				out = folder + ".tar.gz"
			}
			sources := client.BundleSources(buildVersion(), agent, proxy, planner)
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
	flags.StringVar(&out, "out", "", "file to write, which must not be there; -: standard output; default: psidecar-debug-TIME.tar.gz")
	flags.StringVar(&agent, "agent", client.AgentURL, "URL of the agent to ask; empty: none")
	flags.StringVar(&proxy, "proxy", "http://127.0.0.1:9813", "URL of the proxy to ask; empty: none")
	flags.StringVar(&planner, "planner-http", "http://127.0.0.1:9812", "URL of the planner's page; empty: none")
	flags.DurationVar(&each, "patience", 20*time.Second, "how long to wait for each answer")
	return cmd
}

// tellMissing lists the sources that are not in the bundle on standard error; missing.txt in it
// says the same.
func tellMissing(e env, missing []client.MissingSource) {
	for _, m := range missing {
		fmt.Fprintf(e.stderr, "not had: %s: %v\n", m.Name, m.Err)
	}
}
