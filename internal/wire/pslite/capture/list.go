package capture

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A Listed message is a line of [List] in JSON. Its fields are an interface that users' scripts
// read. Times are those of the capture; Keys and Values are numbers of elements, and Bytes is
// the whole message on the wire.
type Listed struct {
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

// List prints the messages of a recording and then its totals. If the recording is damaged it
// prints both all the same, for what comes before the damage, and returns the error. Why
// messages may be missing is logged.
func List(stdout io.Writer, in io.Reader, asJSON bool) error {
	// A recording may hold millions of messages, of which each is a line.
	out := bufio.NewWriterSize(stdout, 1<<16)
	print := printText
	if asJSON {
		print = printJSON
	}
	// Below it is at least the line of totals; a file that is no recording has neither.
	head := sync.OnceFunc(func() {
		if asJSON {
			return
		}
		fmt.Fprintf(out, "%-15s  %-21s  %-21s  %-9s  %-15s %10s %10s %9s %10s %10s\n",
			"TIME", "FROM", "TO", "DIALECT", "KIND", "TIMESTAMP", "HEAD", "KEYS", "VALUES", "BYTES")
	})
	totals, err := Read(in, Options{}, func(m *Message) error {
		head()
		return print(out, Listed{
			Time: m.Time, Connection: m.Flow.String(), From: m.From, To: m.To,
			Dialect: m.Dialect.String(), Kind: m.Meta.Kind().String(),
			Timestamp: m.Meta.Timestamp, Head: m.Meta.Head,
			Keys: m.KeyCount(), Values: m.ValueCount(), Bytes: m.Bytes(),
		})
	})
	if err != nil && totals.Messages == 0 {
		return err
	}
	head()
	if asJSON {
		// An error of out comes again from Flush.
		json.NewEncoder(out).Encode(totals)
	} else {
		fmt.Fprintf(out, "%d messages, %d frames with %d bytes, %d bytes unsynced, %d connections\n",
			totals.Messages, totals.Frames, totals.BodyBytes, totals.UnsyncedBytes, totals.Connections)
	}
	// On standard error, so that the output stays what programs expect.
	warnMissing(&totals)
	// The error about the recording is the more telling one.
	if flushErr := out.Flush(); err == nil {
		err = flushErr
	}
	return err
}

// printJSON prints a message as one line of JSON.
func printJSON(out io.Writer, m Listed) error {
	return json.NewEncoder(out).Encode(m)
}

// printText prints a message as a row of the table whose head [List] prints. The widths are
// fixed, since rows are printed while the recording is read.
func printText(out io.Writer, m Listed) error {
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

// warnMissing logs why messages may be missing from the output, one warning for each cause that
// was seen.
func warnMissing(t *Totals) {
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
