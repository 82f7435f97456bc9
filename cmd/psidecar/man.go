package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/psidecar/psidecar/internal/cli"
)

// newManCommand returns psidecar man, which writes the manual pages that releases contain. It
// is hidden, since users get the pages. Their date is that of the build's commit, and not
// today's, so that the same source makes the same files.
func newManCommand(e env) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write manual pages for all commands",
		Example: "psidecar man /usr/local/share/man/man1",
		Hidden:  true,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			made := time.Time{}
			if text := cli.VersionOf(version).Time; text != "" {
				var err error
				if made, err = time.Parse(time.RFC3339, text); err != nil {
					return fmt.Errorf("the build's time %q: %w", text, err)
				}
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			header := &doc.GenManHeader{Section: "1", Source: "psidecar " + version, Manual: "psidecar", Date: &made}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("writing manual pages: %w", err)
			}
			_, err := fmt.Fprintf(e.stdout, "manual pages are in %s\n", args[0])
			return err
		},
	}
}
