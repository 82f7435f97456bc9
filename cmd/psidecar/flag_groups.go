package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is a subject of flags, as help and FLAGS.md show them.
type flagGroup struct {
	title string
	names []string // in the order in which they are shown; "x-" stands for all that begin so, by name
}

// flagGroups are those of all commands; the flags of one command that are in none
// of them come first, without a title. A flag belongs to the first group that
// names it.
var flagGroups = []flagGroup{
	{"What is watched", []string{"job", "allow-annotations", "cgroup", "pid", "ingress", "sample", "cpu-budget", "memory", "streams", "ring-size", "names", "names-socket", "cgroup-root", "proc"}},
	{"This host", []string{"host", "link-mbit"}},
	{"Connections of the job", []string{"intercept", "intercept-exclude", "adopt", "forward", "max-connections", "grace", "proxy-grace", "proxy-hang-after", "proxy-socket", "proxy-uid", "outlive", "bpf-dir", "mark"}},
	{"Other hosts' proxies", []string{"insecure", "insecure-mesh", "mesh-", "peer-", "no-proxy-retry"}},
	{"Certificates", []string{"tls-"}},
	{"Lossless codecs", []string{"codec", "unchanged"}},
	{"Codecs that leave something out", []string{"threshold", "threshold-", "quantize", "quantize-bucket", "slim", "pull-", "row", "activations-pushed", "wire", "char-values", "least-values", "same-host"}},
	{"Rules and memory of codecs", []string{"follow-codecs", "codec-memory", "proxy-memory", "share-pulls", "aggregate", "aggregate-wait"}},
	{"Where keys are", []string{"placement", "act", "handler", "allow-probe", "state-dir"}},
	{"The data", []string{"input", "rules", "key-map", "seed"}},
	{"Algorithms", []string{"algorithm", "all", "theta", "time-budget", "from", "move-at-most", "resume", "hash-"}},
	{"Machines", []string{"machines", "capacity", "link-speed", "server-ranks", "planner-http", "hosts"}},
	{"Data beyond memory", []string{"stream", "passes", "scratch"}},
	{"Plans", []string{"planner-strategy", "planner-act", "planner-decide-every", "planner-horizon", "planner-store", "strategy", "decide-every", "horizon", "store"}},
	{"The planner to ask", []string{"planner", "planner-ca", "planner-cert", "planner-key", "planner-name"}},
	{"The planner in this process", []string{"planner-"}},
	{"Several planners", []string{"lease", "advertise"}},
	{"Page, interface, administration", []string{"listen", "http", "http-name", "pprof", "control-socket", "socket", "admin-uid"}},
	{"OpenTelemetry", []string{"otlp-"}},
	{"Kubernetes", []string{"kubernetes", "kubernetes-"}},
}

// groupedAbove is the number of flags above which a command's are shown by group.
const groupedAbove = 12

// group is the flags of one subject that a command has.
type group struct {
	title string // empty: of no subject
	flags *pflag.FlagSet
}

// groupFlags sorts a command's own flags by subject. A command of few flags has
// one group without a title.
func groupFlags(cmd *cobra.Command) []group {
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
		return []group{{flags: own}}
	}
	byTitle := map[string][]*pflag.Flag{}
	own.VisitAll(func(f *pflag.Flag) {
		title := groupOf(cmd, f.Name).title
		byTitle[title] = append(byTitle[title], f)
	})
	var groups []group
	for _, g := range slices.Concat([]flagGroup{{}}, flagGroups) {
		flags := byTitle[g.title]
		if len(flags) == 0 || len(flags) == 1 && flags[0].Name == "help" {
			continue
		}
		slices.SortStableFunc(flags, func(a, b *pflag.Flag) int { return g.place(a.Name) - g.place(b.Name) })
		set := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		set.SortFlags = false
		for _, f := range flags {
			set.AddFlag(f)
		}
		groups = append(groups, group{g.title, set})
	}
	return groups
}

// groupOf returns the group of a command's flag. --memory and --act are of other
// subjects in the commands named here.
func groupOf(cmd *cobra.Command, flag string) flagGroup {
	switch path := cmd.CommandPath(); {
	case path == "psidecar partition" && flag == "memory":
		flag = "stream"
	case path == "psidecar planner" && flag == "act":
		flag = "strategy"
	case strings.HasPrefix(path, "psidecar plan ") && (flag == "job" || flag == "act"),
		path == "psidecar heatmap" && (flag == "job" || flag == "names"):
		return flagGroup{}
	}
	for _, g := range flagGroups {
		if slices.Contains(g.names, flag) {
			return g
		}
	}
	for _, g := range flagGroups {
		if g.place(flag) < len(g.names) {
			return g
		}
	}
	return flagGroup{}
}

// place is where a flag stands in its group; len(g.names): it is not of it.
func (g flagGroup) place(flag string) int {
	if i := slices.Index(g.names, flag); i >= 0 {
		return i
	}
	for i, name := range g.names {
		if strings.HasSuffix(name, "-") && strings.HasPrefix(flag, name) {
			return i
		}
	}
	return len(g.names)
}

// groupedUsage is the part of a command's help that lists its own flags.
func groupedUsage(cmd *cobra.Command) string {
	var out strings.Builder
	for _, g := range groupFlags(cmd) {
		if !g.flags.HasAvailableFlags() {
			continue
		}
		if g.title == "" {
			out.WriteString("\n\nFlags:\n")
		} else {
			out.WriteString("\n\n" + g.title + ":\n")
		}
		out.WriteString(strings.TrimRight(g.flags.FlagUsages(), "\n"))
	}
	return out.String()
}

// addFlagGroups has the help of root and of all commands below it show flags by
// subject.
func addFlagGroups(root *cobra.Command) {
	cobra.AddTemplateFunc("groupedUsage", groupedUsage)
	const theirs = `{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}`
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), theirs, `{{if .HasAvailableLocalFlags}}{{groupedUsage .}}{{end}}`, 1))
}
