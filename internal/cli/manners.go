package cli

import (
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NoCommand is the argument check of a command with subcommands. It reports an unknown one with
// the one that was probably meant: a similar name here, or the same name below another command.
func NoCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	hint := DidYouMean(args[0], names)
	if hint == "" {
		if at := elsewhere(cmd.Root(), args[0]); at != "" {
			hint = "; did you mean " + at + "?"
		}
	}
	return Usagef("unknown command %q for %q%s; see %[2]s --help", args[0], cmd.CommandPath(), hint)
}

// elsewhere returns the path of a command with that name anywhere below root, searching level
// by level.
func elsewhere(root *cobra.Command, name string) string {
	for level := root.Commands(); len(level) > 0; {
		var below []*cobra.Command
		for _, sub := range level {
			if sub.Name() == name && sub.IsAvailableCommand() {
				return sub.CommandPath()
			}
			below = append(below, sub.Commands()...)
		}
		level = below
	}
	return ""
}

// MarkUsageErrors makes errors of argument checks [UsageError]s, for cmd and all commands below
// it.
func MarkUsageErrors(cmd *cobra.Command) {
	if cmd.HasSubCommands() && (cmd.Args == nil || cmd.Args(cmd, []string{"other"}) != nil) {
		cmd.Args = NoCommand
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				var usage UsageError
				if _, words, _ := strings.Cut(cmd.Use, " "); !errors.As(err, &usage) && words != "" {
					return Usagef("%s: want %s, not %s; see %[1]s --help", cmd.CommandPath(), words, Count(len(args), "argument", "arguments"))
				}
				return UsageError{err}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		MarkUsageErrors(sub)
	}
}

// wanted describes the values that flags of a type take.
var wanted = map[string]string{
	"bool": "true or false", "duration": "a duration, such as 30s or 5m", "float64": "a number", "float32": "a number",
	"int": "a whole number", "int64": "a whole number", "uint": "a whole number, not negative", "uint16": "a number from 0 to 65535",
	"uint32": "a whole number, not negative", "uint64": "a whole number, not negative",
	"intSlice": "whole numbers, separated by commas", "float64Slice": "numbers, separated by commas", "share": "a share such as 0.99, or auto",
}

// FlagError rewords an error of parsing flags: it says what kind of value is wanted, or which
// flag was probably meant, or which commands have the flag.
func FlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if f := invalid.GetFlag(); wanted[f.Value.Type()] != "" {
			return Usagef("invalid argument %q for --%s: want %s", invalid.GetValue(), f.Name, wanted[f.Value.Type()])
		}
	}
	if !errors.As(err, &unknown) {
		return UsageError{err}
	}
	name := unknown.GetSpecifiedName()
	if unknown.GetSpecifiedShortnames() != "" {
		return Usagef("%w; see %s --help", err, cmd.CommandPath())
	}
	var own []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden { // such as one that was removed
			own = append(own, f.Name)
		}
	})
	if near := nearest(name, own); near != "" {
		return Usagef("%w; did you mean --%s?", err, near)
	}
	if others := withFlag(cmd.Root(), name); len(others) > 0 {
		if len(others) > 3 {
			others = append(others[:3], "others")
		}
		return Usagef("%w: %s has none, but %s; see %[2]s --help", err, cmd.CommandPath(), strings.Join(others, ", "))
	}
	return Usagef("%w; see %s --help", err, cmd.CommandPath())
}

// withFlag returns the paths of the commands below root that have a flag.
func withFlag(root *cobra.Command, name string) []string {
	var all []string
	for _, sub := range root.Commands() {
		if sub.LocalFlags().Lookup(name) != nil {
			all = append(all, sub.CommandPath())
		}
		all = append(all, withFlag(sub, name)...)
	}
	return all
}

// WarnMisspelt logs a warning for each variable in environ (NAME=VALUE) that is nearly that of
// a flag. Variables that Kubernetes sets for services are ignored. Unknown variables are no
// error, since they may be for another version.
func WarnMisspelt(cmd *cobra.Command, environ []string) {
	known := slices.DeleteFunc(FlagNames(cmd.Root()), func(name string) bool { return len(name) < 3 })
	for i := range known {
		known[i] = variableOf(known[i])
	}
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		if !strings.HasPrefix(name, "PSIDECAR_") || slices.Contains(known, name) || ofService.MatchString(name) || strings.HasPrefix(value, "tcp://") {
			continue
		}
		if near := nearest(strings.TrimPrefix(name, "PSIDECAR_"), bare(known)); near != "" {
			slog.Warn("ignoring an environment variable that matches no flag", "name", name, "did_you_mean", "PSIDECAR_"+near)
		}
	}
}

// ofService matches variables that Kubernetes sets in pods for a service named psidecar.
var ofService = regexp.MustCompile(`_SERVICE_(HOST|PORT.*)$|_PORT_[0-9]+_`)

// bare removes the common prefix, which would make all variables look alike to nearest.
func bare(variables []string) []string {
	names := make([]string, len(variables))
	for i, v := range variables {
		names[i] = strings.TrimPrefix(v, "PSIDECAR_")
	}
	return names
}

// variableOf returns the environment variable of a flag.
func variableOf(flag string) string {
	return "PSIDECAR_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
