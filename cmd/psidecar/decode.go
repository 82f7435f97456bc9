package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/wire/pslite/capture"
)

// newDecodeCommand returns psidecar decode. It reads a file and nothing else, so that a capture
// can be looked at on any machine.
func newDecodeCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "decode CAPTURE",
		Short: "List the PS-lite messages in a pcap or pcapng file",
		Long: `List the PS-lite messages in a file written by tcpdump -w, and their share of
the traffic. CAPTURE may be - for standard input.

With --json, print one object per line for each message, and a final one with
the totals. An unset timestamp or head is 2147483647, as on the wire.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := e.stdin
			if args[0] != "-" {
				file, err := os.Open(args[0])
				if err != nil {
					return fmt.Errorf("opening the capture: %w", err)
				}
				defer file.Close()
				in = file
			}
			asJSON, _ := cmd.Flags().GetBool("json")
			if err := capture.List(e.stdout, in, asJSON); err != nil {
				return fmt.Errorf("decoding %s: %w", args[0], err)
			}
			return nil
		},
	}
	cmd.Flags().Bool("json", false, "print JSON, one object per line")
	return cmd
}
