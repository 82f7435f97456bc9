package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/relay"
)

// A proxy that sums nothing knows the sums of the one before it, where that has left files about them.
// One that cannot know them removes the files, which would be wrong for the next one.
func TestProxyThatSumsNothingKnowsSums(t *testing.T) {
	codec, err := values.New(values.Options{Compact: compact.DefaultLimits})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		left, outlive bool
		codecs        []relay.Codec
		knows, keeps  bool
	}{
		"nothing left": {codecs: []relay.Codec{codec}},
		"files left":   {left: true, codecs: []relay.Codec{codec}, knows: true, keeps: true},
		"no codec":     {left: true},
		"outlives":     {left: true, outlive: true, codecs: []relay.Codec{codec}},
	} {
		t.Run(name, func(t *testing.T) {
			f := Settings{Aggregate: AggregateNone, AggregateLeast: aggregate.Least, Outlive: tc.outlive, Memory: 1 << 30}
			f.Routing.Dir = t.TempDir()
			sums := filepath.Join(f.Routing.Dir, ".sums")
			if tc.left {
				if err := os.MkdirAll(filepath.Join(sums, "1-2-3"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			o := proxy.Options{Codecs: tc.codecs}
			if err := f.aggregates(&o); err != nil {
				t.Fatal(err)
			}
			if knows := o.Aggregate != nil && o.Aggregate.Ends(); knows != tc.knows {
				t.Errorf("it knows sums: %v, want %v", knows, tc.knows)
			}
			if _, err := os.Stat(sums); (err == nil) != tc.keeps {
				t.Errorf("%s: %v, want it kept: %v", sums, err, tc.keeps)
			}
		})
	}
}
