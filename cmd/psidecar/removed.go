package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// removedFlags are flags that the release before this one had, with what to do instead. They are kept
// for one release, so that a command line, a variable or a configuration file that still sets one is
// answered rather than misread.
var removedFlags = map[string]string{
	"insecure-mesh":     "it was removed: use --insecure",
	"spare-servers":     "it was removed: run the job with more servers, among which --split divides large values",
	"spare-limit":       "it was removed, as was --spare-servers",
	"lease":             onePlanner,
	"advertise":         onePlanner,
	"planner-lease":     onePlanner,
	"planner-advertise": onePlanner,
	"quantize-bucket":   inRules,
	"threshold-drain":   inRules,
	"follow-codecs":     "it was removed: a proxy with --planner follows the planner's rules",
	"streams":           "it was removed: an agent follows 16,384 connections",
	"stream":            beyondMemory,
	"passes":            beyondMemory,
	"scratch":           beyondMemory,
	"otlp-endpoint":     noOTLP,
	"otlp-slow":         noOTLP,
	"csv":               "it was removed: the file of --names is YAML; names show prints a table, or JSON",
	"plot":              "it was removed: --json has the figures",
	"names-socket":      "it was removed: the file of --names is read again when it changes",
	"resume":            "it was removed: best takes 2 minutes of CPU time for 96 million edges; --time-budget bounds the time",
}

const inRules = "it was removed: set the key of the same name in a rule under codec-rules, in the file of --config"

const beyondMemory = "it was removed: partition takes 26 bytes of memory per edge, --hash-bins makes fewer edges, and psidecar-beam divides what exceeds one machine"

const noOTLP = "it was removed: have the OpenTelemetry collector's Prometheus receiver scrape /metrics"

const onePlanner = "it was removed: run one planner with a store in a file; while it is away jobs go on with the last plan"

// addRemoved adds the removed flags to all commands. Setting one is an error.
func addRemoved(root *cobra.Command) {
	for name, instead := range removedFlags {
		f := root.PersistentFlags().VarPF(removedFlag(instead), name, "", instead)
		f.Hidden, f.NoOptDefVal = true, "true" // some took no value
	}
}

// removedFlag is the [pflag.Value] of a removed flag: what to do instead.
type removedFlag string

func (f removedFlag) Set(string) error { return errors.New(string(f)) }
func (f removedFlag) String() string   { return "" }
func (f removedFlag) Type() string     { return "removed" }
