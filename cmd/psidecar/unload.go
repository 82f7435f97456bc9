package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent/daemon"
)

// unloadReport is what unload --json prints.
type unloadReport struct {
	Removed []string `json:"removed"` // paths of pinned programs' links and maps
}

// newUnloadCommand returns psidecar unload. It is for what a killed agent has left; beside an
// agent that runs it takes the redirection away from it.
func newUnloadCommand(e env) *cobra.Command {
	var dir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "unload",
		Short: "Remove all of psidecar's state from this host's kernel",
		Long: `Remove all of psidecar's state from this host's kernel: the programs that redirect
connections to the proxy, which are detached first, and their maps. From then on,
new connections go direct, even for jobs that fail closed without a proxy: if keys
of such a job are displaced, run psidecar restore first. Connections through a
proxy continue while it runs. If nothing is loaded, do nothing.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			removed, err := daemon.Unload(dir)
			if err != nil {
				return fmt.Errorf("unloading (as root?): %w", err)
			}
			if asJSON {
				if removed == nil {
					// A list in JSON, never null.
					removed = []string{}
				}
				return json.NewEncoder(e.stdout).Encode(unloadReport{removed})
			}
			for _, path := range removed {
				if _, err := fmt.Fprintln(e.stdout, "removed", path); err != nil {
					return err
				}
			}
			if len(removed) == 0 {
				_, err = fmt.Fprintln(e.stdout, "psidecar has nothing loaded in", dir)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "bpf-dir", daemon.DefaultDir, "directory in a BPF file system with the pinned programs")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
