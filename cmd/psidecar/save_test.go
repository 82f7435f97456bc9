package main

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/require"
)

// What --save sets, and that a flag given as well comes first.
func TestSave(t *testing.T) {
	for _, c := range []struct {
		args []string
		want values.Rule
	}{
		{[]string{"--save=lossless"}, values.Rule{Unchanged: true}},
		{[]string{"--save=none"}, values.Rule{}},
		{[]string{"--save=0.95"}, values.Rule{Threshold: 0.95, Warmup: saveWarmup, Unchanged: true}},
		{[]string{"--save=0.95", "--threshold-warmup=0", "--unchanged=false"}, values.Rule{Threshold: 0.95}},
		{[]string{"--save=auto"}, values.Rule{Threshold: values.AutoThreshold, Auto: true, Unchanged: true}},
		{[]string{"--save=auto", "--threshold-warmup=9", "--quantize=8"}, values.Rule{Threshold: values.AutoThreshold, Auto: true, Warmup: 9, Quantize: 8, Unchanged: true}},
	} {
		var f proxyFlags
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.StringVar(&f.save, "save", "", "")
		flags.StringSliceVar(&f.Codecs, "codec", []string{"auto"}, "")
		f.Values.Register(flags)
		require.NoError(t, flags.Parse(c.args))
		require.NoError(t, f.applySave(flags))
		if got := f.Values.Rule; got.Threshold != c.want.Threshold || got.Auto != c.want.Auto || got.Warmup != c.want.Warmup || got.Quantize != c.want.Quantize || got.Unchanged != c.want.Unchanged {
			t.Errorf("%v: %+v, want %+v", c.args, got, c.want)
		}
		if isNone := isOffCodec(f.Codecs); isNone != (c.args[0] == "--save=none") {
			t.Errorf("%v: codecs %v", c.args, f.Codecs)
		}
	}
}
