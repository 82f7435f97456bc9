package main

import (
	"strconv"

	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/daemon"
)

// saveWarmup is the number of pushes of a layer over which the share of --save rises: gradients
// are largest, and their directions least settled, when training begins.
const saveWarmup = 100

// lossyFlags are those that let values be changed on the way.
var lossyFlags = []string{"threshold", "slim", "quantize", "pull-threshold", "pull-quantize", "threshold-activations", "wire"}

// save sets what --save stands for. What each value sets, and which flags may stand beside it:
//
//	value     sets                                                  excludes
//	none      --codec none                                          all flags of codecs
//	lossless  --codec auto --unchanged                              flags of lossy codecs
//	SHARE     --codec auto --unchanged --threshold SHARE,           --threshold, --slim,
//	          --threshold-warmup 100                                --threshold-activations
//	auto      --codec auto --unchanged --threshold auto             the same
//
// A flag given as well takes precedence over what --save sets (--codec compact,
// --unchanged=false, --threshold-warmup 0), and one that it does not exclude is added to it.
func (f *proxyFlags) applySave(flags *pflag.FlagSet) error {
	if f.save == "" {
		return nil
	}
	excluded := []string{"threshold", "slim", "threshold-activations"}
	share, err := strconv.ParseFloat(f.save, 64)
	switch {
	case f.save == "none":
		excluded = append([]string{"codec", "unchanged"}, lossyFlags...)
	case f.save == "lossless":
		excluded = lossyFlags
	case f.save != policy.Auto && (err != nil || !(share > 0 && share < 1)):
		return cli.Usagef("--save %q: want none, lossless, auto, or the share of pushed values to hold back, such as 0.95 or 0.99", f.save)
	}
	for _, name := range excluded {
		if flag := flags.Lookup(name); flag.Changed && !isOff(flag) {
			return cli.Usagef("--save %s and --%s exclude each other: omit one of them", f.save, name)
		}
	}
	if f.save == "none" {
		f.Codecs = []string{"none"}
		return nil
	}
	if flags.Changed("codec") && isOffCodec(f.Codecs) {
		return cli.Usagef("--save %s needs a codec: omit --codec none", f.save)
	}
	r := &f.Values.Rule
	if !flags.Changed("unchanged") {
		r.Unchanged = true
	}
	if f.save == "lossless" {
		return nil
	}
	if f.save == policy.Auto { // which begins with a small share
		r.Threshold, r.Auto = values.AutoThreshold, true
		return nil
	}
	r.Threshold = share
	if !flags.Changed("threshold-warmup") {
		r.Warmup = saveWarmup
	}
	return nil
}

// isOffCodec reports whether codecs name none.
func isOffCodec(codecs []string) bool {
	for _, c := range codecs {
		if c == daemon.AutoCodec || c == daemon.CompactCodec {
			return false
		}
	}
	return true
}
