// Package sums has the rules by which pushes of a host's workers are summed before they
// leave it, or go one by one: by ranges of keys, of which the first that has a key counts.
// The planner hands them out for each job, proxies follow them. It is known to all parts;
// it has no state.
package sums

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
	Host = "host" // pushes of a host's workers are summed
	None = "none" // they go one by one
)

// Planner, as By, says that the planner has made a rule of itself.
const Planner = "planner"

// MaxRules bounds a list: each push is looked up in it.
const MaxRules = 64

// Keys are neighbours, both ends included.
type Keys struct{ First, Last uint64 }

// All has every key.
var All = Keys{Last: math.MaxUint64}

// String is what [Keys.UnmarshalText] reads.
func (k Keys) String() string { return fmt.Sprintf("%d-%d", k.First, k.Last) }

// MarshalText writes first-last.
func (k Keys) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads first-last, or one key.
func (k *Keys) UnmarshalText(text []byte) error {
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

// A Rule says of some keys whether pushes of them are summed.
type Rule struct {
	Keys *Keys  `json:"keys,omitempty"` // nil: all
	Form string `json:"form"`           // host or none
	By   string `json:"by,omitempty"`   // who made it: planner, or empty for people
}

// Range returns the rule's keys.
func (r *Rule) Range() Keys {
	if r.Keys == nil {
		return All
	}
	return *r.Keys
}

// String is a rule in words.
func (r *Rule) String() string {
	if r.Keys == nil {
		return r.Form
	}
	return r.Form + " for keys " + r.Keys.String()
}

// Parse reads a JSON list of rules, and checks it.
func Parse(text string) ([]Rule, error) {
	if text == "" {
		return nil, nil
	}
	var rules []Rule
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&rules); err != nil {
		return nil, fmt.Errorf("reading rules: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("reading rules: more than one list")
	}
	return rules, Check(rules)
}

// Check says what is wrong with rules, if anything.
func Check(rules []Rule) error {
	if len(rules) > MaxRules {
		return fmt.Errorf("%d rules, at most %d are allowed", len(rules), MaxRules)
	}
	for i := range rules {
		switch r := &rules[i]; {
		case r.Form != Host && r.Form != None:
			return fmt.Errorf("rule %d: form %q: want %s or %s", i+1, r.Form, Host, None)
		case r.By != "" && r.By != Planner:
			return fmt.Errorf("rule %d: by %q: want %s, or nothing", i+1, r.By, Planner)
		case r.Keys != nil && r.Keys.Last < r.Keys.First:
			return fmt.Errorf("rule %d: keys %v: the last is below the first", i+1, r.Keys)
		}
	}
	return nil
}

// Decide reports whether a push whose keys lie within a range is summed: where that is so
// of every key of the range. Otherwise says what holds for keys of which no rule speaks.
func Decide(rules []Rule, keys Keys, otherwise bool) bool {
	for i := range rules {
		r := rules[i].Range()
		if r.Last < keys.First || r.First > keys.Last {
			continue
		}
		if rules[i].Form != Host {
			return false
		}
		rest := rules[i+1:]
		return (r.First <= keys.First || Decide(rest, Keys{keys.First, r.First - 1}, otherwise)) &&
			(r.Last >= keys.Last || Decide(rest, Keys{r.Last + 1, keys.Last}, otherwise))
	}
	return otherwise
}

// Of returns rules that have pushes of some ranges summed, and others not; all: of all
// keys. No ranges, no rules.
func Of(ranges []Keys, all bool) (rules []Rule) {
	switch {
	case len(ranges) == 0:
		return nil
	case all:
		return []Rule{{Form: Host}}
	}
	for _, k := range ranges[:min(len(ranges), MaxRules-1)] {
		rules = append(rules, Rule{Keys: &k, Form: Host})
	}
	return append(rules, Rule{Form: None})
}
