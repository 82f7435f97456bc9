package main

import (
	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/page"
)

// addKeyNames adds --names, a file with what keys are called. Agents, planners and the tools
// that show keys have it; each applies names to what it shows, so a tool may use others than
// the agent it asks.
func addKeyNames(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "names", "", "YAML file with names of key ranges (name, first, last) and of the rows in them (keys-per-row, row), for all jobs or one (job); reloaded when it changes")
}

// openNames reads the file of --names. Without one it returns nil, whose [page.NameFile.Map]
// has no names. A file with a fault is a usage error here, at the start; later faulty versions
// of it only are logged.
func openNames(path string) (*page.NameFile, error) {
	f, err := page.OpenNames(path)
	if err != nil {
		return nil, cli.Usagef("--names: %w", err)
	}
	return f, nil
}

// shownHottest is how many of a job's hottest keys status names.
const shownHottest = 4
