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
		Short: "Remove everything that psidecar keeps in the kernel of this host",
		Long: `Remove everything that psidecar keeps in the kernel of this host: the programs
that redirect connections to the proxy, detached first, and their maps. New
connections go direct from then on, also those of jobs whose connections were
to fail without a proxy: if keys of such a job are displaced, run psidecar
restore before. Connections through a proxy go on while it runs. Where nothing
is loaded it does nothing.`,
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
				_, err = fmt.Fprintln(e.stdout, "nothing of psidecar's is loaded in", dir)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "bpf-dir", daemon.DefaultDir, "folder in a BPF file system in which it is pinned")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
