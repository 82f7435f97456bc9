package train

import (
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// All workers pull the whole model in each step, and it is what was pushed.
func TestDenseModelIsWhatWasPushed(t *testing.T) {
	o := defaults("dense")
	o.Steps, o.Server.ValueLength, o.Count.Keys, o.Count.Batch = 5, 300, 20, 3
	for _, r := range mustRun(t, config(t, 2, 3), o) {
		if r.Checked != 5*20 || r.Steps != 5 {
			t.Errorf("%+v", r)
		}
	}
}

// Workers that pull parts of it get the values of these.
func TestPartsOfDenseModel(t *testing.T) {
	o := defaults("dense")
	o.Steps, o.Server.ValueLength, o.Count.Keys, o.Count.Batch, o.DensePart = 5, 3, 21, 10, 0.5
	for _, r := range mustRun(t, config(t, 2, 3), o) {
		if r.Checked != 5*(5+5+1) {
			t.Errorf("%+v", r)
		}
	}
}

func TestDenseNeedsKnownSums(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"rule":  func(o *Options) { o.Server.Rule = "sgd" },
		"steps": func(o *Options) { o.Steps = 0 },
		"async": func(o *Options) { o.Async = true },
		"keys":  func(o *Options) { o.Count.Keys = 0 },
		"part":  func(o *Options) { o.DensePart = 0 },
	} {
		o := defaults("dense")
		o.Steps, o.Server.Rule, o.Count.Keys, o.Count.Batch = 1, "add", 1, 1
		require.NoError(t, o.checkDense())
		change(&o)
		if o.checkDense() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
