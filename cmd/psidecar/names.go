package main

import (
	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/page"
)

// addKeyNames has the flag that says what keys are called.
func addKeyNames(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "names", "", "YAML or CSV file that names ranges of keys (name, first, last) and the rows in them (keys-per-row, row), of all jobs or one (job), read again when it changes")
}

// Where names of keys are set by default (psidecar names set). psidecar up has its
// --control-socket for it.
const (
	agentNamesSocket   = "/run/psidecar/names.sock"
	plannerNamesSocket = "/run/psidecar-planner/names.sock"
)

// addNamesSocket has the flag of an agent's or planner's socket for names.
func addNamesSocket(cmd *cobra.Command, path *string, usual string) {
	cmd.Flags().StringVar(path, "names-socket", usual, "unix socket at which root, this process's user and --admin-uid set what keys are called (psidecar names set), until the file of --names changes or this process ends; empty: none")
}

// openNames reads the file of --names, if there is one.
func openNames(path string) (*page.NameFile, error) {
	f, err := page.OpenNames(path)
	if err != nil {
		return nil, cli.Usagef("--names: %w", err)
	}
	return f, nil
}

// shownHottest is how many of a job's hottest keys status names.
const shownHottest = 4
