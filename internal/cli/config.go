package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// LoadFlags sets the flags of cmd that the command line has left out: first from environment
// variables (--hash-bins from PSIDECAR_HASH_BINS), then from the YAML file that --config names.
// A key of the file is the name of a flag. Keys of other commands' flags are allowed, so that
// one file can serve all commands, and so are the keys in others, which the caller reads
// itself. An error is a [UsageError], or that of reading the file.
func LoadFlags(cmd *cobra.Command, lookup func(variable string) (string, bool), others ...string) error {
	if err := flagsFromEnvironment(cmd, lookup); err != nil {
		return err
	}
	path, err := cmd.Flags().GetString("config")
	if err != nil || path == "" {
		return err
	}
	return flagsFromFile(cmd, path, others)
}

// FromFile is the annotation of flags that got their value from the file, by which a reload of
// the file knows which flags it may change.
const FromFile = "from-file"

// flagsFromEnvironment sets flags from their variables and stops at the first error.
func flagsFromEnvironment(cmd *cobra.Command, lookup func(string) (string, bool)) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := variableOf(f.Name)
		value, ok := lookup(name)
		// VisitAll cannot be stopped, so it runs on without doing anything.
		if !ok || f.Changed || failed != nil {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			failed = Usagef("environment variable %s=%q: %w", name, value, err)
		}
	})
	return failed
}

// flagsFromFile sets flags from a YAML file. Flags that have a value already, from the command
// line or a variable, keep it.
func flagsFromFile(cmd *cobra.Command, path string, others []string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading --config: %w", err)
	}
	// Nodes rather than values, for the line numbers in errors and for the text as it was
	// written: a duration or a size would otherwise be read as YAML's idea of it.
	var values map[string]yaml.Node
	if err := yaml.Unmarshal(text, &values); err != nil {
		return Usagef("--config %s: %w", path, err)
	}
	// A misspelt key must not go unnoticed, whichever command it is for.
	known := FlagNames(cmd.Root())
	for key, node := range values {
		if slices.Contains(others, key) {
			continue
		}
		if !slices.Contains(known, key) {
			return Usagef("--config %s, line %d: %q is no flag of psidecar%s", path, node.Line, key, DidYouMean(key, known))
		}
		f := cmd.Flags().Lookup(key)
		// It is another command's flag, or has a value that takes precedence.
		if f == nil || f.Changed {
			continue
		}
		value, err := FlagText(node)
		if err == nil {
			err = cmd.Flags().Set(key, value)
		}
		if err == nil {
			err = cmd.Flags().SetAnnotation(key, FromFile, nil)
		}
		if err != nil {
			return Usagef("--config %s, line %d: %s: %w", path, node.Line, key, err)
		}
	}
	return nil
}

// FlagText returns a YAML scalar, or a list of scalars, as it would be written on the command
// line.
func FlagText(node yaml.Node) (string, error) {
	switch node.Kind {
	case yaml.ScalarNode:
		return node.Value, nil
	case yaml.SequenceNode:
		parts := make([]string, len(node.Content))
		for i, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				return "", fmt.Errorf("item %d is not a plain value", i+1)
			}
			parts[i] = item.Value
		}
		return strings.Join(parts, ","), nil
	}
	return "", fmt.Errorf("want a plain value or a list of them")
}

// FlagNames returns the names of all flags of root and of the commands below it, with
// duplicates.
func FlagNames(root *cobra.Command) []string {
	var names []string
	add := func(f *pflag.Flag) { names = append(names, f.Name) }
	root.PersistentFlags().VisitAll(add)
	for _, cmd := range root.Commands() {
		cmd.LocalFlags().VisitAll(add)
		names = append(names, FlagNames(cmd)...)
	}
	return names
}
