// Package cli is the frame of a command line: flags from the environment and from a
// file, errors that say what was probably meant, help by subject, progress in a
// terminal, and text that cannot work one. It knows no command; what a command does,
// and which flags it has, is cmd/psidecar's.
package cli

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

// UsageError marks an error that the user mends by calling differently; it
// ends the process with exit code 2.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// Usagef returns a UsageError made as by [fmt.Errorf].
func Usagef(format string, args ...any) error {
	return UsageError{fmt.Errorf(format, args...)}
}

// SetLogger has package slog write to out as --log-level and --log-format say.
func SetLogger(cmd *cobra.Command, out io.Writer) error {
	name, err := cmd.Flags().GetString("log-level")
	if err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return Usagef("--log-level %q: use debug, info, warn or error", name)
	}
	format, err := cmd.Flags().GetString("log-format")
	if err != nil {
		return err
	}
	options := &slog.HandlerOptions{Level: level}
	switch format {
	case "text":
		slog.SetDefault(slog.New(slog.NewTextHandler(out, options)))
	case "json":
		slog.SetDefault(slog.New(slog.NewJSONHandler(out, options)))
	default:
		return Usagef("--log-format %q: use text or json", format)
	}
	return nil
}
