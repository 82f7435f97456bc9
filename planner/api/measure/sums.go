package measure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Forms of a rule.
const (
	SumHost = "host" // pushes of a host's workers are summed
	SumNone = "none" // each push is sent by itself
)

// ByPlanner is the author of rules that the planner has made by itself.
const ByPlanner = "planner"

// MaxSumRules bounds a list of rules: every push is looked up in it.
const MaxSumRules = 64

// A KeyRange is the keys from First to Last, both included.
type KeyRange struct{ First, Last uint64 }

// AllKeys has every key.
var AllKeys = KeyRange{Last: math.MaxUint64}

// String is what [KeyRange.UnmarshalText] reads.
func (k KeyRange) String() string { return fmt.Sprintf("%d-%d", k.First, k.Last) }

// MarshalText writes first-last.
func (k KeyRange) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads first-last, or one key.
func (k *KeyRange) UnmarshalText(text []byte) error {
	first, last, both := strings.Cut(string(text), "-")
	if !both {
		last = first
	}
	var errs [2]error
	k.First, errs[0] = strconv.ParseUint(strings.TrimSpace(first), 10, 64)
	k.Last, errs[1] = strconv.ParseUint(strings.TrimSpace(last), 10, 64)
	if errors.Join(errs[:]...) != nil || k.Last < k.First {
		return fmt.Errorf("keys %q: want FIRST-LAST, whole numbers, the first not above the last", text)
	}
	return nil
}

// A SumRule says for some keys whether pushes of them are summed.
type SumRule struct {
	Keys *KeyRange `json:"keys,omitempty"` // nil: all
	Form string    `json:"form"`           // host or none
	By   string    `json:"by,omitempty"`   // author: planner, or empty for people
}

// Range returns the rule's keys.
func (r *SumRule) Range() KeyRange {
	if r.Keys == nil {
		return AllKeys
	}
	return *r.Keys
}

// String is a rule in words.
func (r *SumRule) String() string {
	if r.Keys == nil {
		return r.Form
	}
	return r.Form + " for keys " + r.Keys.String()
}

// ParseSumRules parses and checks a JSON list of rules. "" is no rules. Unknown fields are errors:
// an older proxy must not ignore half of a rule.
func ParseSumRules(text string) ([]SumRule, error) {
	if text == "" {
		return nil, nil
	}
	var rules []SumRule
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&rules); err != nil {
		return nil, fmt.Errorf("reading rules: %w", err)
	}
	// Decode stops after the first value.
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("reading rules: more than one list")
	}
	return rules, CheckSumRules(rules)
}

// CheckSumRules returns the first fault of rules, nil if there is none.
func CheckSumRules(rules []SumRule) error {
	if len(rules) > MaxSumRules {
		return fmt.Errorf("%d rules, at most %d are allowed", len(rules), MaxSumRules)
	}
	for i := range rules {
		switch r := &rules[i]; {
		case r.Form != SumHost && r.Form != SumNone:
			return fmt.Errorf("rule %d: form %q: want %s or %s", i+1, r.Form, SumHost, SumNone)
		case r.By != "" && r.By != ByPlanner:
			return fmt.Errorf("rule %d: by %q: want %s, or nothing", i+1, r.By, ByPlanner)
		case r.Keys != nil && r.Keys.Last < r.Keys.First:
			return fmt.Errorf("rule %d: keys %v: the last is below the first", i+1, r.Keys)
		}
	}
	return nil
}

// DecideSums reports whether a push whose keys lie within a range is summed. It is if that is so
// for every key of the range; otherwise is the answer for keys that no rule covers. A push is
// summed as a whole or not at all.
func DecideSums(rules []SumRule, keys KeyRange, otherwise bool) bool {
	for i := range rules {
		r := rules[i].Range()
		if r.Last < keys.First || r.First > keys.Last {
			continue
		}
		if rules[i].Form != SumHost {
			return false
		}
		// The rule decides on the keys in its range. Those on either side of it are left to the
		// rules after it.
		rest := rules[i+1:]
		return (r.First <= keys.First || DecideSums(rest, KeyRange{keys.First, r.First - 1}, otherwise)) &&
			(r.Last >= keys.Last || DecideSums(rest, KeyRange{r.Last + 1, keys.Last}, otherwise))
	}
	return otherwise
}

// SumRulesOf returns rules that have pushes of the given ranges summed and others not; with all,
// those of all keys. No ranges give no rules. Ranges beyond MaxSumRules are left out, which only
// saves less.
func SumRulesOf(ranges []KeyRange, all bool) (rules []SumRule) {
	switch {
	case len(ranges) == 0:
		return nil
	case all:
		return []SumRule{{Form: SumHost}}
	}
	for _, k := range ranges[:min(len(ranges), MaxSumRules-1)] {
		rules = append(rules, SumRule{Keys: &k, Form: SumHost})
	}
	return append(rules, SumRule{Form: SumNone})
}
