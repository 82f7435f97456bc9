package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
)

// version is set at build time with -ldflags "-X main.version=...".
var version = "devel"

// newVersionCommand returns psidecar version.
func newVersionCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version and build information",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := cli.VersionOf(version)
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				return json.NewEncoder(e.stdout).Encode(info)
			}
			_, err := fmt.Fprintf(e.stdout, "psidecar %s %s %s %s\n", info.Version, info.Revision, info.Go, info.Platform)
			return err
		},
	}
	cmd.Flags().Bool("json", false, "print JSON")
	return cmd
}
