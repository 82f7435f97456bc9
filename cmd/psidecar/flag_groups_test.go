package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var updateFlags = flag.Bool("update-flags", false, "write the flags of all commands into FLAGS.md")

const aboutFlags = `# Flags

Written by ` + "`go test ./cmd/psidecar -run FlagsAreListed -update-flags`" + `; ` + "`psidecar COMMAND --help`" + ` has the same.

Every flag is also an environment variable (` + "`--hash-bins` is `PSIDECAR_HASH_BINS`" + `) and a key of the YAML file that ` + "`--config`" + ` names; the command line wins, then the environment.
`

// FLAGS.md lists every flag of every command as the commands themselves describe
// them.
func TestFlagsAreListed(t *testing.T) {
	const path = "FLAGS.md"
	text, err := os.ReadFile(path)
	if err != nil && !*updateFlags {
		t.Fatal(err)
	}
	root := newRootCommand(env{lookup: func(string) (string, bool) { return "", false }})
	want := aboutFlags + flagTables(root)
	if want == string(text) {
		return
	}
	if !*updateFlags {
		t.Fatal("FLAGS.md differs from the commands' flags; run go test ./cmd/psidecar -run FlagsAreListed -update-flags")
	}
	if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Help that is sorted by subject shows each flag, once.
func TestFlagsAreShownOnce(t *testing.T) {
	root := newRootCommand(env{lookup: func(string) (string, bool) { return "", false }})
	for _, cmd := range allCommands(root) {
		groups := flagGroups.Split(cmd)
		if len(groups) < 2 {
			continue
		}
		shown := map[string]int{}
		for _, g := range groups {
			g.Flags.VisitAll(func(f *pflag.Flag) { shown[f.Name]++ })
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if shown[f.Name] != 1 && f.Name != "help" {
				t.Errorf("%s: --%s is shown %d times", cmd.CommandPath(), f.Name, shown[f.Name])
			}
		})
	}
}

// The daemons' help shows no flag outside a subject.
func TestDaemonsFlagsHaveASubject(t *testing.T) {
	root := newRootCommand(env{lookup: func(string) (string, bool) { return "", false }})
	for _, name := range []string{"agent", "proxy", "planner", "up"} {
		cmd, _, err := root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		if g := flagGroups.Split(cmd)[0]; g.Title == "" {
			g.Flags.VisitAll(func(f *pflag.Flag) { t.Errorf("psidecar %s: --%s has no subject in flagGroups", name, f.Name) })
		}
	}
}

// flagTables is a table of flags for each command that has any of its own, or one
// for each subject.
func flagTables(root *cobra.Command) string {
	var out strings.Builder
	common := []string{"help", "json", "config", "log-level", "log-format"}
	for _, cmd := range allCommands(root) {
		if cmd.Name() == "completion" || cmd.Hidden {
			continue
		}
		heading := fmt.Sprintf("\n## %s\n\n%s.\n", cmd.CommandPath(), cmd.Short)
		for _, g := range flagGroups.Split(cmd) {
			var rows strings.Builder
			g.Flags.VisitAll(func(f *pflag.Flag) {
				if !slices.Contains(common, f.Name) {
					fmt.Fprintf(&rows, "| `%s` | %s |\n", flagName(f), flagMeaning(f))
				}
			})
			if rows.Len() == 0 {
				continue
			}
			title := cmp.Or(g.Title, "flag")
			fmt.Fprintf(&out, "%s\n| %s | meaning (default) |\n| --- | --- |\n%s", heading, strings.ToLower(title[:1])+title[1:], rows.String())
			heading = ""
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
