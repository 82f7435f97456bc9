package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A FlagGroup is a subject under which help shows flags.
type FlagGroup struct {
	Title string
	Names []string // in the order in which they are shown; "x-" stands for all that begin with it, sorted
}

// FlagGroups are the subjects of the flags of all commands. A flag belongs to the first group
// that names it. Flags in no group come first, without a title.
type FlagGroups struct {
	All []FlagGroup
	// Subject returns the name under which a command's flag is looked up; empty: it belongs to
	// no group.
	Subject func(cmd *cobra.Command, flag string) string
}

// groupedAbove is the number of flags up to which a command's flags are not grouped.
const groupedAbove = 12

// A Group is the flags of one subject that a command has.
type Group struct {
	Title string // empty: no subject
	Flags *pflag.FlagSet
}

// Split divides a command's own flags by subject. A command with few flags has one group
// without a title.
func (all *FlagGroups) Split(cmd *cobra.Command) []Group {
	// Only root shows persistent flags as its own; below it they are shown as inherited.
	own := cmd.LocalNonPersistentFlags()
	if !cmd.HasParent() {
		own = cmd.LocalFlags()
	}
	count := 0
	own.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			count++
		}
	})
	if count <= groupedAbove {
		return []Group{{Flags: own}}
	}
	byTitle := map[string][]*pflag.Flag{}
	own.VisitAll(func(f *pflag.Flag) {
		title := all.groupOf(cmd, f.Name).Title
		byTitle[title] = append(byTitle[title], f)
	})
	var groups []Group
	// The empty group, without a title, holds the flags that belong to no subject.
	for _, g := range slices.Concat([]FlagGroup{{}}, all.All) {
		flags := byTitle[g.Title]
		// A group of help alone would be noise.
		if len(flags) == 0 || len(flags) == 1 && flags[0].Name == "help" {
			continue
		}
		slices.SortStableFunc(flags, func(a, b *pflag.Flag) int { return g.place(a.Name) - g.place(b.Name) })
		set := pflag.NewFlagSet(g.Title, pflag.ContinueOnError)
		// Otherwise pflag would sort them by name again.
		set.SortFlags = false
		for _, f := range flags {
			set.AddFlag(f)
		}
		groups = append(groups, Group{g.Title, set})
	}
	return groups
}

// groupOf returns the group of a command's flag, without a title if there is none. Exact names
// take precedence over prefixes in any group.
func (all *FlagGroups) groupOf(cmd *cobra.Command, flag string) FlagGroup {
	// A command may have a flag of the same name as another's with a different meaning.
	flag = all.Subject(cmd, flag)
	for _, g := range all.All {
		if slices.Contains(g.Names, flag) {
			return g
		}
	}
	for _, g := range all.All {
		if flag != "" && g.place(flag) < len(g.Names) {
			return g
		}
	}
	return FlagGroup{}
}

// place returns the position of a flag in its group, len(g.Names) if it does not belong to it.
func (g FlagGroup) place(flag string) int {
	if i := slices.Index(g.Names, flag); i >= 0 {
		return i
	}
	for i, name := range g.Names {
		if strings.HasSuffix(name, "-") && strings.HasPrefix(flag, name) {
			return i
		}
	}
	return len(g.Names)
}

// usage returns the part of a command's help that lists its own flags.
func (all *FlagGroups) usage(cmd *cobra.Command) string {
	var out strings.Builder
	for _, g := range all.Split(cmd) {
		if !g.Flags.HasAvailableFlags() {
			continue
		}
		if g.Title == "" {
			out.WriteString("\n\nFlags:\n")
		} else {
			out.WriteString("\n\n" + g.Title + ":\n")
		}
		out.WriteString(strings.TrimRight(g.Flags.FlagUsages(), "\n"))
	}
	return out.String()
}

// Show makes the help of root and of all commands below it show flags by subject. It replaces a
// part of cobra's template; if a new version of cobra changes that part, help falls back to the
// flat list.
func (all *FlagGroups) Show(root *cobra.Command) {
	cobra.AddTemplateFunc("groupedUsage", all.usage)
	const theirs = `{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}`
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), theirs, `{{if .HasAvailableLocalFlags}}{{groupedUsage .}}{{end}}`, 1))
}
