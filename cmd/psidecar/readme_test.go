package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var updateReadme = flag.Bool("update-readme", false, "write the flags of all commands into the README")

// The README lists every flag of every command as the commands themselves
// describe them.
func TestReadmeListsAllFlags(t *testing.T) {
	const path, first, last = "../../README.md", "<!-- flags: go test ./cmd/psidecar -update-readme -->\n", "<!-- end of flags -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), first)
	if !ok {
		t.Fatalf("README.md lacks %q", first)
	}
	_, after, ok := strings.Cut(rest, last)
	if !ok {
		t.Fatalf("README.md lacks %q", last)
	}
	root := newRootCommand(env{lookup: func(string) (string, bool) { return "", false }})
	want := before + first + flagTables(root) + last + after
	if want == string(text) {
		return
	}
	if !*updateReadme {
		t.Fatal("the README's flags differ from the commands'; run go test ./cmd/psidecar -run Readme -update-readme")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// flagTables is a table of flags for each command that has any of its own.
func flagTables(root *cobra.Command) string {
	var out strings.Builder
	common := []string{"help", "json", "config", "log-level", "log-format"}
	for _, cmd := range allCommands(root) {
		var rows strings.Builder
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(common, f.Name) {
				fmt.Fprintf(&rows, "| `%s` | %s |\n", flagName(f), flagMeaning(f))
			}
		})
		if rows.Len() > 0 && cmd.Name() != "completion" && !cmd.Hidden {
			fmt.Fprintf(&out, "\n`%s`\n\n| flag | meaning (default) |\n| --- | --- |\n%s", cmd.CommandPath(), rows.String())
		}
	}
	return out.String()
}

// allCommands returns the commands below root, at any depth.
func allCommands(root *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, cmd := range root.Commands() {
		all = append(append(all, cmd), allCommands(cmd)...)
	}
	return all
}

func flagName(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "-" + f.Shorthand + ", --" + f.Name
	}
	return "--" + f.Name
}

func flagMeaning(f *pflag.Flag) string {
	usage := strings.ReplaceAll(f.Usage, "|", `\|`)
	switch f.DefValue {
	case "", "[]", "false", "0", "0s":
		return usage
	}
	return fmt.Sprintf("%s (%s)", usage, f.DefValue)
}
