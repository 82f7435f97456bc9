package sums

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// decideKey is what the first rule says that has a key.
func decideKey(rules []Rule, key uint64, otherwise bool) bool {
	for i := range rules {
		if k := rules[i].Range(); k.First <= key && key <= k.Last {
			return rules[i].Form == Host
		}
	}
	return otherwise
}

// A range is summed where each of its keys is.
func TestDecide(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		var rules []Rule
		for range rng.IntN(5) {
			r := Rule{Form: []string{Host, None}[min(rng.IntN(4), 1)^1]}
			if rng.IntN(8) > 0 {
				first := rng.Uint64N(12)
				r.Keys = &Keys{first, first + rng.Uint64N(6)}
			}
			rules = append(rules, r)
		}
		first := rng.Uint64N(12)
		keys, otherwise := Keys{first, first + rng.Uint64N(8)}, rng.IntN(2) == 0
		want := true
		for k := keys.First; k <= keys.Last; k++ {
			want = want && decideKey(rules, k, otherwise)
		}
		if got := Decide(rules, keys, otherwise); got != want {
			t.Fatalf("keys %v by %v, otherwise %v: %v, want %v", keys, rules, otherwise, got, want)
		}
	}
	if !Decide([]Rule{{Form: Host}}, All, false) || Decide([]Rule{{Form: None}}, Keys{}, true) {
		t.Error("a rule without keys is not for all")
	}
}

func TestParse(t *testing.T) {
	const text = `[{"keys":"0-99","form":"none"},{"form":"host","by":"planner"}]`
	rules, err := Parse(text)
	if err != nil || len(rules) != 2 || *rules[0].Keys != (Keys{0, 99}) || rules[1].Keys != nil {
		t.Fatalf("%v, %v", rules, err)
	}
	if again, err := json.Marshal(rules); err != nil || string(again) != text {
		t.Errorf("%s, %v", again, err)
	}
	if none, err := Parse(""); none != nil || err != nil {
		t.Errorf("%v, %v", none, err)
	}
	for bad, want := range map[string]string{
		`[{}]`: "form", `[{"form":"rack"}]`: `form "rack"`, `[{"form":"host","by":"me"}]`: `by "me"`,
		`[{"form":"host","keys":"9-1"}]`: "not above", `[{"form":"host","keys":"a"}]`: "whole numbers",
		`[{"form":"host","link":1}]`: "link", `{}`: "reading", `[] []`: "more than one",
		"[" + strings.Repeat(`{"form":"host"},`, MaxRules) + `{"form":"host"}]`: "65 rules",
	} {
		if _, err := Parse(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", bad, err, want)
		}
	}
}

// Rules of ranges have these summed and nothing else.
func TestOf(t *testing.T) {
	rules := Of([]Keys{{10, 19}, {50, 59}}, false)
	for keys, want := range map[Keys]bool{{10, 19}: true, {50, 50}: true, {15, 25}: false, {20, 49}: false, {60, 99}: false} {
		if err := Check(rules); err != nil || Decide(rules, keys, true) != want {
			t.Errorf("keys %v: want %v; %v", keys, want, err)
		}
	}
	if rules := Of([]Keys{{10, 19}}, true); !Decide(rules, All, false) {
		t.Errorf("of all keys: %v", rules)
	}
	if rules := Of(nil, false); len(rules) > 0 {
		t.Errorf("of none: %v", rules)
	}
	if rules := Of(make([]Keys, 100), false); Check(rules) != nil {
		t.Errorf("of too many: %v", Check(rules))
	}
}
