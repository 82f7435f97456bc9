package train

import "testing"

// Asynchronous sums of doubles are exact, on one server and on several.
func TestPingPongSumsDoubles(t *testing.T) {
	for _, keyMap := range []string{"identity", "spread"} {
		o := defaults("pingpong")
		o.Steps, o.Count.Keys, o.KeyMap = 20, 785, keyMap
		for _, r := range mustRun(t, config(t, 2, 3), o) {
			if r.Checked != 785 || r.Steps != 20 || r.PullBytes != 21*785*8 {
				t.Errorf("%s: %+v", keyMap, r)
			}
		}
	}
}

func TestPingPongNeedsExactSums(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"rule":  func(o *Options) { o.Server.Rule = "sgd" },
		"width": func(o *Options) { o.Server.ValueLength = 4 },
		"steps": func(o *Options) { o.Steps = 1<<16 + 1 },
		"keys":  func(o *Options) { o.Count.Keys = 0 },
	} {
		o := defaults("pingpong")
		o.Steps, o.Server.Rule, o.Server.ValueLength, o.Count.Keys = 1, "add", 2, 1
		if err := o.checkPingPong(); err != nil {
			t.Fatal(err)
		}
		change(&o)
		if o.checkPingPong() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
