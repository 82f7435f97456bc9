package main

import (
	"bufio"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
)

// newAccessesCommand prints what a worker recorded of its own accesses: the ground
// truth that an agent's counts are compared with. Keys go to standard output, a line
// each, in ascending order, and the header as JSON to standard error, so that a pipe
// gets nothing but keys.
//
// The file is read as a stream, so that a log of any size takes little memory. Lines
// before an error, such as a truncated file, are not all printed.
func newAccessesCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accesses FILE",
		Short: "Print an access log, one line per key: key, pushes, bytes pushed, pulls, bytes pulled",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("accesses wants one file, got %d", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			// A log has a line for each of perhaps millions of keys.
			out := bufio.NewWriter(e.stdout)
			h, err := kv.ReadAccessFile(args[0], func(key uint64, c kv.AccessCounts) error {
				_, err := fmt.Fprintln(out, key, c.Pushes, c.PushBytes, c.Pulls, c.PullBytes)
				return err
			})
			if err != nil {
				return err
			}
			line, err := json.Marshal(h)
			if err != nil {
				return err
			}
			fmt.Fprintf(e.stderr, "%s\n", line)
			return out.Flush()
		},
	}
	return cmd
}
