package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/bpf"
)

// newDoctorCommand returns psidecar doctor. It needs no root, though without it some facts
// cannot be found out, and changes nothing. If something required is missing it prints the
// whole report and then fails, so that scripts can go by the exit code.
func newDoctorCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this host meets psidecar's requirements, and how to fix what is missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			facts, err := readFacts(cmd)
			if err != nil {
				return err
			}
			report := bpf.NewProbeReport(facts)
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				err = json.NewEncoder(e.stdout).Encode(report)
			} else {
				err = report.Print(e.stdout)
			}
			if err == nil && !report.OK {
				err = errors.New("this host does not meet the requirements for watching")
			}
			return err
		},
	}
	cmd.Flags().Bool("json", false, "print JSON, including the facts that were evaluated")
	cmd.Flags().String("facts", "", "evaluate the facts in this file (JSON output of doctor on another host) instead of this host")
	return cmd
}

// readFacts returns the facts about this host, or those in the file of --facts.
func readFacts(cmd *cobra.Command) (bpf.Facts, error) {
	path, err := cmd.Flags().GetString("facts")
	if err != nil {
		return bpf.Facts{}, err
	}
	if path == "" {
		return bpf.GatherFacts()
	}
	return bpf.ReadFacts(path)
}
