package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
)

// flagGroups are the groups in which the help of all commands lists flags, in order. A flag
// belongs to the first group that names it, a name that ends in a dash standing for all flags
// that begin so. Flags of a command that are in no group come first, without a title. FLAGS.md
// is made by the same groups.
var flagGroups = cli.FlagGroups{Subject: flagSubject, First: firstFlags, All: []cli.FlagGroup{
	{Title: "Watching", Names: []string{"job", "allow-annotations", "cgroup", "pid", "ingress", "sample", "cpu-budget", "memory", "ring-size", "names", "cgroup-root", "proc"}},
	{Title: "This host", Names: []string{"host", "link-mbit"}},
	{Title: "Job connections", Names: []string{"intercept", "intercept-exclude", "adopt", "forward", "max-connections", "grace", "proxy-grace", "proxy-hang-after", "proxy-socket", "proxy-uid", "outlive", "replace", "bpf-dir", "mark"}},
	{Title: "Proxies on other hosts", Names: []string{"insecure", "mesh-", "peer-", "no-proxy-retry"}},
	{Title: "Certificates", Names: []string{"tls-"}},
	{Title: "Lossless codecs", Names: []string{"save", "codec", "unchanged"}},
	{Title: "Lossy codecs", Names: []string{"threshold", "threshold-", "quantize", "slim", "pull-", "row", "activations-pushed", "wire", "char-values", "least-values", "same-host"}},
	{Title: "Codec rules, memory, sharing and sums", Names: []string{"codec-memory", "proxy-memory", "share-pulls", "share-least", "aggregate", "aggregate-wait", "aggregate-least"}},
	{Title: "Key placement and moves", Names: []string{"placement", "act", "handler", "allow-probe", "split", "state-dir"}},
	{Title: "Data", Names: []string{"input", "rules", "key-map", "seed"}},
	{Title: "Algorithms", Names: []string{"algorithm", "all", "theta", "time-budget", "from", "move-at-most", "hash-"}},
	{Title: "Machines", Names: []string{"machines", "capacity", "link-speed", "server-ranks", "planner-http"}},
	{Title: "Plans", Names: []string{"planner-strategy", "planner-act", "planner-decide-every", "planner-horizon", "planner-store", "strategy", "decide-every", "horizon", "store"}},
	{Title: "Planner connection", Names: []string{"planner", "planner-ca", "planner-cert", "planner-key", "planner-name"}},
	{Title: "Embedded planner", Names: []string{"planner-"}},
	{Title: "HTTP endpoints and administration", Names: []string{"listen", "http", "http-name", "pprof", "control-socket", "socket", "admin-uid"}},
	{Title: "Kubernetes", Names: []string{"kubernetes", "kubernetes-"}},
}}

// firstFlags are the flags that most people use of a command that has many, in the order in which
// its help shows them; --help-all shows the others too.
var firstFlags = map[string][]string{
	"agent":           {"planner", "planner-ca", "planner-cert", "planner-key", "intercept", "cgroup", "job", "names", "cpu-budget", "host", "http", "kubernetes"},
	"proxy":           {"save", "insecure", "tls-ca", "tls-cert", "tls-key", "planner", "act", "handler", "placement", "char-values", "forward", "http"},
	"planner":         {"listen", "http", "store", "act", "strategy", "names", "insecure", "tls-ca", "tls-cert", "tls-key"},
	"up":              {"save", "insecure", "tls-ca", "tls-cert", "tls-key", "planner", "planner-store", "act", "handler", "placement", "char-values", "intercept", "names", "http"},
	"partition":       {"input", "machines", "out", "algorithm", "all", "time-budget", "key-map", "server-ranks", "hash-bins", "seed", "json"},
	"heatmap":         {"agent", "job", "measure", "by", "first", "last", "from", "to", "names", "png", "json"},
	"record":          {"out", "for", "force", "info", "job", "cgroup", "sample"},
	"simulate":        {"strategies", "codecs", "proxy", "plot", "seed", "json"},
	"plan codecs set": {"job", "threshold", "quantize", "unchanged", "keys", "wire", "char-values", "off", "act", "planner", "wait"},
}

// flagSubject returns the name by which a command's flag is looked up among the groups; empty
// if it is in none. It exists for names with different meanings: --act, --job and
// --names are about something else in the commands named here.
func flagSubject(cmd *cobra.Command, flag string) string {
	switch path := cmd.CommandPath(); {
	case path == "psidecar planner" && flag == "act":
		return "strategy"
	case strings.HasPrefix(path, "psidecar plan ") && (flag == "job" || flag == "act"),
		path == "psidecar heatmap" && (flag == "job" || flag == "names" || flag == "from"):
		return ""
	}
	return flag
}
