package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// loadConfig fills the flags of cmd that the command line leaves out: first
// from environment variables (--hash-bins from PSIDECAR_HASH_BINS), then from
// the YAML file that --config names. A key of the file is a flag's name; keys
// of other commands' flags are allowed, so that one file serves them all.
func loadConfig(cmd *cobra.Command, e env) error {
	if err := flagsFromEnvironment(cmd, e); err != nil {
		return err
	}
	path, err := cmd.Flags().GetString("config")
	if err != nil || path == "" {
		return err
	}
	return flagsFromFile(cmd, path)
}

// fromFile is the annotation of flags that have their value from the file.
const fromFile = "from-file"

func flagsFromEnvironment(cmd *cobra.Command, e env) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := variableOf(f.Name)
		value, ok := e.lookup(name)
		if !ok || f.Changed || failed != nil {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			failed = usagef("environment variable %s=%q: %w", name, value, err)
		}
	})
	return failed
}

func flagsFromFile(cmd *cobra.Command, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading --config: %w", err)
	}
	var values map[string]yaml.Node
	if err := yaml.Unmarshal(text, &values); err != nil {
		return usagef("--config %s: %w", path, err)
	}
	known := allFlagNames(cmd.Root())
	for key, node := range values {
		if key == rulesKey {
			continue // see codecs.go
		}
		if !slices.Contains(known, key) {
			return usagef("--config %s, line %d: %q is no flag of psidecar%s", path, node.Line, key, didYouMean(key, known))
		}
		f := cmd.Flags().Lookup(key)
		if f == nil || f.Changed {
			continue
		}
		value, err := flagText(node)
		if err == nil {
			err = cmd.Flags().Set(key, value)
		}
		if err == nil {
			err = cmd.Flags().SetAnnotation(key, fromFile, nil)
		}
		if err != nil {
			return usagef("--config %s, line %d: %s: %w", path, node.Line, key, err)
		}
	}
	return nil
}

// flagText writes a YAML scalar, or a list of them, as it would stand on the
// command line.
func flagText(node yaml.Node) (string, error) {
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

func allFlagNames(root *cobra.Command) []string {
	var names []string
	add := func(f *pflag.Flag) { names = append(names, f.Name) }
	root.PersistentFlags().VisitAll(add)
	for _, cmd := range root.Commands() {
		cmd.LocalFlags().VisitAll(add)
		names = append(names, allFlagNames(cmd)...)
	}
	return names
}
