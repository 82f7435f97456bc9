package measure

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// decideKey is what the first rule says that has a key.
func decideKey(rules []SumRule, key uint64, otherwise bool) bool {
	for i := range rules {
		if k := rules[i].Range(); k.First <= key && key <= k.Last {
			return rules[i].Form == SumHost
		}
	}
	return otherwise
}

// A range is summed where each of its keys is.
func TestDecide(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		var rules []SumRule
		for range rng.IntN(5) {
			r := SumRule{Form: []string{SumHost, SumNone}[min(rng.IntN(4), 1)^1]}
			if rng.IntN(8) > 0 {
				first := rng.Uint64N(12)
				r.Keys = &KeyRange{first, first + rng.Uint64N(6)}
			}
			rules = append(rules, r)
		}
		first := rng.Uint64N(12)
		keys, otherwise := KeyRange{first, first + rng.Uint64N(8)}, rng.IntN(2) == 0
		want := true
		for k := keys.First; k <= keys.Last; k++ {
			want = want && decideKey(rules, k, otherwise)
		}
		if got := DecideSums(rules, keys, otherwise); got != want {
			t.Fatalf("keys %v by %v, otherwise %v: %v, want %v", keys, rules, otherwise, got, want)
		}
	}
	if !DecideSums([]SumRule{{Form: SumHost}}, AllKeys, false) || DecideSums([]SumRule{{Form: SumNone}}, KeyRange{}, true) {
		t.Error("a rule without keys is not for all")
	}
}

func TestParse(t *testing.T) {
	const text = `[{"keys":"0-99","form":"none"},{"form":"host","by":"planner"}]`
	rules, err := ParseSumRules(text)
	if err != nil || len(rules) != 2 || *rules[0].Keys != (KeyRange{0, 99}) || rules[1].Keys != nil {
		t.Fatalf("%v, %v", rules, err)
	}
	if again, err := json.Marshal(rules); err != nil || string(again) != text {
		t.Errorf("%s, %v", again, err)
	}
	if none, err := ParseSumRules(""); none != nil || err != nil {
		t.Errorf("%v, %v", none, err)
	}
	for bad, want := range map[string]string{
		`[{}]`: "form", `[{"form":"rack"}]`: `form "rack"`, `[{"form":"host","by":"me"}]`: `by "me"`,
		`[{"form":"host","keys":"9-1"}]`: "not above", `[{"form":"host","keys":"a"}]`: "whole numbers",
		`[{"form":"host","link":1}]`: "link", `{}`: "reading", `[] []`: "more than one",
		"[" + strings.Repeat(`{"form":"host"},`, MaxSumRules) + `{"form":"host"}]`: "65 rules",
	} {
		if _, err := ParseSumRules(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", bad, err, want)
		}
	}
}

// Rules of ranges have these summed and nothing else.
func TestSumsOf(t *testing.T) {
	rules := SumRulesOf([]KeyRange{{10, 19}, {50, 59}}, false)
	for keys, want := range map[KeyRange]bool{{10, 19}: true, {50, 50}: true, {15, 25}: false, {20, 49}: false, {60, 99}: false} {
		if err := CheckSumRules(rules); err != nil || DecideSums(rules, keys, true) != want {
			t.Errorf("keys %v: want %v; %v", keys, want, err)
		}
	}
	if rules := SumRulesOf([]KeyRange{{10, 19}}, true); !DecideSums(rules, AllKeys, false) {
		t.Errorf("of all keys: %v", rules)
	}
	if rules := SumRulesOf(nil, false); len(rules) > 0 {
		t.Errorf("of none: %v", rules)
	}
	if rules := SumRulesOf(make([]KeyRange, 100), false); CheckSumRules(rules) != nil {
		t.Errorf("of too many: %v", CheckSumRules(rules))
	}
}
