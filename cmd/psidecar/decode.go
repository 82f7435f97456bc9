package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/pslite/capture"
)

// decodedMessage is a line of decode --json. Its fields are an interface that users' scripts
// read. Times are those of the capture; Keys and Values are numbers of elements, and Bytes is
// the whole message on the wire.
type decodedMessage struct {
	Time       time.Time `json:"time"`
	Connection string    `json:"connection"`
	From       string    `json:"from"`
	To         string    `json:"to"`
	Dialect    string    `json:"dialect"`
	Kind       string    `json:"kind"`
	Timestamp  int32     `json:"timestamp"`
	Head       int32     `json:"head"`
	Keys       int       `json:"keys"`
	Values     int       `json:"values"`
	Bytes      uint64    `json:"bytes"`
}

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
			if err := decode(e.stdout, in, asJSON); err != nil {
				return fmt.Errorf("decoding %s: %w", args[0], err)
			}
			return nil
		},
	}
	cmd.Flags().Bool("json", false, "print JSON, one object per line")
	return cmd
}

// decode prints the messages of a capture and then their totals. If the capture is damaged it
// prints both all the same, for what comes before the damage, and returns the error.
func decode(stdout io.Writer, in io.Reader, asJSON bool) error {
	// A capture may hold millions of messages, of which each is a line.
	out := bufio.NewWriterSize(stdout, 1<<16)
	print := printDecodedText
	if asJSON {
		print = printDecodedJSON
	} else {
		fmt.Fprintf(out, "%-15s  %-21s  %-21s  %-9s  %-15s %10s %10s %9s %10s %10s\n",
			"TIME", "FROM", "TO", "DIALECT", "KIND", "TIMESTAMP", "HEAD", "KEYS", "VALUES", "BYTES")
	}
	totals, err := capture.Read(in, capture.Options{}, func(m *capture.Message) error {
		return print(out, decodedMessage{
			Time: m.Time, Connection: m.Flow.String(), From: m.From, To: m.To,
			Dialect: m.Dialect.String(), Kind: m.Meta.Kind().String(),
			Timestamp: m.Meta.Timestamp, Head: m.Meta.Head,
			Keys: m.KeyCount(), Values: m.ValueCount(), Bytes: m.Bytes(),
		})
	})
	if asJSON {
		// An error of out comes again from Flush.
		json.NewEncoder(out).Encode(totals)
	} else {
		fmt.Fprintf(out, "%d messages, %d frames with %d bytes, %d bytes unsynced, %d connections\n",
			totals.Messages, totals.Frames, totals.BodyBytes, totals.UnsyncedBytes, totals.Connections)
	}
	// On standard error, so that the output stays what programs expect.
	warnDecoded(&totals)
	// The error about the capture is the more telling one.
	if flushErr := out.Flush(); err == nil {
		err = flushErr
	}
	return err
}

// printDecodedJSON prints a message as one line of JSON.
func printDecodedJSON(out io.Writer, m decodedMessage) error {
	return json.NewEncoder(out).Encode(m)
}

// printDecodedText prints a message as a row of the table whose head [decode] prints. The
// widths are fixed, since rows are printed while the capture is read.
func printDecodedText(out io.Writer, m decodedMessage) error {
	_, err := fmt.Fprintf(out, "%-15s  %-21s  %-21s  %-9s  %-15s %10s %10s %9d %10d %10d\n",
		m.Time.Format("15:04:05.000000"), m.From, m.To, m.Dialect, m.Kind,
		orDash(m.Timestamp), orDash(m.Head), m.Keys, m.Values, m.Bytes)
	return err
}

// orDash formats an id, and one that is not set as a dash.
func orDash(v int32) string {
	if v == pslite.Empty {
		return "-"
	}
	return fmt.Sprint(v)
}

// warnDecoded logs why messages may be missing from the output, one warning for each cause that
// was seen.
func warnDecoded(t *capture.Totals) {
	warn := func(n uint64, what string) {
		if n > 0 {
			slog.Warn(what, "count", n)
		}
	}
	warn(t.MissingBytes, "bytes of TCP streams are missing in the capture; record with tcpdump -s 0 and a larger -B")
	warn(t.ForeignStreams, "directions of connections are not ZMTP")
	// Forks are counted among what is not PS-lite as well.
	unknown := t.NotPSLite
	for f := pslite.NoFork + 1; f < pslite.Forks; f++ {
		warn(t.Forks[f], "messages are of "+f.String()+", an unsupported PS-lite fork")
		unknown -= t.Forks[f]
	}
	warn(unknown, "ZMTP messages are not PS-lite's")
	warn(t.SkippedPackets, "packets are not TCP, or are fragments")
	warn(t.TooMany, "segments were ignored because too many connections were open")
}
