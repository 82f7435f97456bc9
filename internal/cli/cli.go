// Package cli is the frame of a command line: flags from the environment and from a file,
// errors that suggest what was probably meant, help by subject, listeners and files that flags
// name, progress in a terminal, and output that is safe for a terminal. It knows no command;
// commands and their flags are in cmd/psidecar and cmd/psjob.
//
// Flags take their values, in this order, from the command line, from PSIDECAR_* variables,
// from the file of --config, and from their defaults ([LoadFlags]). Errors of the user's are
// [UsageError]s and end the process with exit code 2; all others with 1.
package cli

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/logs"
)

// A UsageError marks an error that the user can correct by calling the program differently. It
// ends the process with exit code 2.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// Usagef returns a UsageError with a text as by [fmt.Errorf].
func Usagef(format string, args ...any) error {
	return UsageError{fmt.Errorf(format, args...)}
}

// SetLogger makes package slog write to out, according to the flags --log-level and
// --log-format.
func SetLogger(cmd *cobra.Command, out *logs.Writer) error {
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
		slog.SetDefault(out.NewLogger(func(out io.Writer) slog.Handler { return slog.NewTextHandler(out, options) }))
	case "json":
		slog.SetDefault(out.NewLogger(func(out io.Writer) slog.Handler { return slog.NewJSONHandler(out, options) }))
	default:
		return Usagef("--log-format %q: use text or json", format)
	}
	return nil
}
