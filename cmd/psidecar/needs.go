package main

import (
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
)

// A need says with which other flags the flags of a line have an effect.
type need struct {
	flags string // names, separated by blanks; one that ends in a dash stands for all that begin so
	with  string // one of these is set, or has a default other than off; with a value, as in "sample=auto": it has that
	not   string // and this one is not set
	only  string // the commands for which this holds, by path below psidecar; empty: all that have the flags
}

// needs are the flags that do nothing without others. A flag that somebody gives without effect
// is an error, as they expect one; in the environment or the file of --config, which several
// hosts and commands may share, it is none.
var needs = []need{
	{flags: "act", with: "planner", only: "proxy"},
	{flags: "split", with: "act"},
	{flags: "allow-probe", with: "act"},
	{flags: "aggregate-wait aggregate-least", with: "aggregate", only: "proxy up"},
	{flags: "share-least", with: "share-pulls"},
	{flags: "threshold-lifespan threshold-warmup threshold-until", with: "threshold save"},
	{flags: "threshold-unpulled same-host", with: "threshold save slim quantize threshold-activations wire pull-threshold pull-quantize"},
	{flags: "row activations-pushed", with: "threshold-activations"},
	{flags: "mesh-listen mesh-allow mesh-ports no-proxy-retry peer-grace peer-patience", with: "mesh-port", only: "proxy up"},
	{flags: "proxy-socket proxy-uid proxy-grace proxy-hang-after mesh-port", with: "intercept", only: "agent"},
	{flags: "adopt intercept-exclude bpf-dir", with: "intercept", only: "agent up"},
	{flags: "save codec unchanged threshold slim quantize pull-threshold pull-quantize wire share-pulls aggregate placement act", with: "intercept forward", only: "up"},
	{flags: "cpu-budget", with: "sample=auto"},
	{flags: "kubernetes-", with: "kubernetes"},
	{flags: "http-name pprof", with: "http"},
	{flags: "planner-ca planner-cert planner-key planner-name", with: "planner"},
	{flags: "planner-tls-", not: "planner", only: "up"},
	{flags: "time-budget", with: "algorithm=best all", only: "partition"},
	{flags: "hash-bits hash-scheme", with: "hash-bins", only: "partition"},
	{flags: "move-at-most", with: "from", only: "partition"},
	{flags: "each link-speed", with: "machines", only: "plan aggregate show"},
	{flags: "role any-host", with: "host", only: "certs"},
	{flags: "seconds proxy", with: "codecs", only: "simulate"},
}

// given returns the flags of the command line alone; it is called before those of other sources
// are set.
func given(cmd *cobra.Command) (names []string) {
	cmd.Flags().Visit(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// checkNeeds returns a usage error for a flag among names that has no effect.
func checkNeeds(cmd *cobra.Command, names []string) error {
	flags := cmd.Flags()
	path := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
	for _, n := range needs {
		if n.only != "" && path != n.only && !slices.Contains(strings.Fields(n.only), path) {
			continue
		}
		for _, name := range names {
			if !slices.ContainsFunc(strings.Fields(n.flags), func(f string) bool {
				return f == name || strings.HasSuffix(f, "-") && strings.HasPrefix(name, f)
			}) || isOff(flags.Lookup(name)) {
				continue
			}
			if n.not != "" && flags.Lookup(n.not).Changed && !isOff(flags.Lookup(n.not)) {
				return cli.Usagef("--%s has no effect with --%s: omit one of them", name, n.not)
			}
			if wants := n.missing(flags); wants != "" {
				return cli.Usagef("--%s has no effect: it needs %s", name, wants)
			}
		}
	}
	return nil
}

// missing returns the flags of which one is wanted and none is set; empty: one is.
func (n *need) missing(flags *pflag.FlagSet) string {
	var wants []string
	for _, with := range strings.Fields(n.with) {
		name, value, exact := strings.Cut(with, "=")
		f := flags.Lookup(name)
		switch {
		case f == nil:
			continue
		case exact && f.Value.String() == value, !exact && !isOff(f):
			return ""
		}
		wants = append(wants, "--"+strings.ReplaceAll(with, "=", " "))
	}
	return strings.Join(wants, " or ")
}

// isOff reports whether a flag's value asks for nothing.
func isOff(f *pflag.Flag) bool {
	return slices.Contains([]string{"", "0", "0s", "[]", "false", "none"}, f.Value.String())
}

// checkAddresses returns a usage error for an address that can never be one. Where it matters
// whether somebody is there, that is found out later.
func checkAddresses(cmd *cobra.Command) error {
	// certs issues certificates for planners, by name.
	if f := cmd.Flags().Lookup("planner"); f != nil && f.Value.Type() == "string" {
		if err := client.CheckPlanner(f.Value.String()); err != nil {
			return err
		}
	}
	for _, name := range []string{"http", "listen", "planner-http", "planner-listen", "mesh-listen"} {
		f := cmd.Flags().Lookup(name)
		if f == nil || f.Value.String() == "" || cmd.Flags().Lookup("planner-ca") == nil && name == "planner-http" {
			continue
		}
		addresses := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			addresses = list.GetSlice()
		}
		for _, a := range addresses {
			_, port, err := net.SplitHostPort(a)
			if err == nil {
				_, err = net.LookupPort("tcp", port)
			}
			if err != nil {
				return cli.Usagef("--%s %q: want HOST:PORT or :PORT", name, a)
			}
		}
	}
	return nil
}
