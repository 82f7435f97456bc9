package cli

import (
	"cmp"
	"fmt"
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
	// First are the flags that help shows unless all are asked for, by the command's path below
	// root; a command without an entry shows all of its flags.
	First map[string][]string
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

// HelpAll is the flag for help with all flags.
const HelpAll = "help-all"

// HelpArgs returns the arguments with which cobra shows the help that args ask for. A flag keeps its
// place: cobra takes what follows one that it does not know yet for its value.
func HelpArgs(args []string) []string {
	args = slices.Clone(args)
	for i, a := range args {
		if a == "--"+HelpAll {
			args[i] = "--help"
		}
	}
	return args
}

// first returns a command's flags that help shows at first, and the number of its others.
func (all *FlagGroups) first(cmd *cobra.Command) (groups []Group, others int) {
	groups = all.Split(cmd)
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	names := all.First[path]
	if names == nil {
		return groups, 0
	}
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.SortFlags = false
	for _, name := range names {
		set.AddFlag(cmd.Flags().Lookup(name))
	}
	for _, g := range groups {
		g.Flags.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" && !slices.Contains(names, f.Name) {
				others++
			}
		})
	}
	return []Group{{Flags: set}}, others
}

// Show makes the help of root and of all commands below it show flags: the first ones, or all of
// them by subject. Apart from that, usage has the parts and the form of cobra's. It is written without cobra's templates:
// text/template calls methods by name, and a program that links it keeps every exported method
// of every type.
func (all *FlagGroups) Show(root *cobra.Command, everything bool) {
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		var out strings.Builder
		out.WriteString("Usage:")
		if cmd.Runnable() {
			out.WriteString("\n  " + cmd.UseLine())
		}
		if cmd.HasAvailableSubCommands() {
			out.WriteString("\n  " + cmd.CommandPath() + " [command]")
		}
		if cmd.HasExample() {
			section(&out, "Examples:", cmd.Example)
		}
		subcommands(&out, cmd)
		groups, others := all.first(cmd)
		if everything {
			groups, others = all.Split(cmd), 0
		}
		for _, g := range groups {
			if g.Flags.HasAvailableFlags() {
				section(&out, cmp.Or(g.Title, "Flags")+":", g.Flags.FlagUsages())
			}
		}
		if others > 0 {
			fmt.Fprintf(&out, "\n\n%s --%s shows %d more flags.", cmd.CommandPath(), HelpAll, others)
		}
		if cmd.HasAvailableInheritedFlags() {
			section(&out, "Global Flags:", cmd.InheritedFlags().FlagUsages())
		}
		if cmd.HasAvailableSubCommands() {
			fmt.Fprintf(&out, "\n\nUse \"%s [command] --help\" for more information about a command.", cmd.CommandPath())
		}
		_, err := fmt.Fprintln(cmd.OutOrStderr(), out.String())
		return err
	})
}

// section writes a part of a command's usage.
func section(out *strings.Builder, title, text string) {
	out.WriteString("\n\n" + title + "\n" + strings.TrimRight(text, " \n"))
}

// subcommands writes the commands below cmd by their groups, and at last those without one.
func subcommands(out *strings.Builder, cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	rest := &cobra.Group{Title: "Available Commands:"}
	if len(cmd.Groups()) > 0 {
		rest.Title = "Additional Commands:"
	}
	for _, group := range append(slices.Clone(cmd.Groups()), rest) {
		var lines strings.Builder
		for _, c := range cmd.Commands() {
			if c.GroupID == group.ID && (c.IsAvailableCommand() || c.Name() == "help") {
				fmt.Fprintf(&lines, "  %-*s %s\n", c.NamePadding(), c.Name(), c.Short)
			}
		}
		if lines.Len() > 0 {
			section(out, group.Title, lines.String())
		}
	}
}
