// Package policy has the names of jobs and the measures that their owners ask for, by
// annotations of pods or in the environment of processes, as far as the administrator allows.
//
// Its input are texts that anybody may have written. Its output is a checked [Policy], a
// [Claim] to a name, and complaints about the rest. Agents read settings, planner and agents
// assign names ([Assign]), proxies obey. Apart from [Titles] it has no state.
//
// # Titles
//
// [Titles] keeps names of jobs and the wishes of their owners as the host's agent reports them,
// for the processes of one origin: those in one cgroup and network namespace. A title applies
// to its own origin only, since a process could otherwise claim the rights of another tenant's
// job.
//
// The codec for values looks up rules by name; the proxy looks up the codec of a connection,
// and names for its metrics.
package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Prefix is that of annotations for psidecar, Environment that of the variables that mean the
// same.
const (
	Prefix      = "psidecar.io/"
	Environment = "PSIDECAR_"
)

// Keys: what the owner of a job may set, as the end of an annotation's name.
const (
	Job       = "job"       // what it is called
	Observe   = "observe"   // true or false: whether the job is watched and carried
	Codec     = "codec"     // compact, auto or none, as --codec has them
	Threshold = "threshold" // fraction of each layer's pushed values that is held back
	Move      = "move"      // true or false: whether its keys are moved as planned
	Aggregate = "aggregate" // host or none: whether pushes of its workers on a host are summed
)

// Keys lists them.
var Keys = []string{Job, Observe, Codec, Threshold, Move, Aggregate}

// Variable returns the name of a key's environment variable.
func Variable(key string) string { return Environment + strings.ToUpper(key) }

// KeyOf is the inverse of [Variable]; ok is false for other variables.
func KeyOf(variable string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(variable, Environment)
	key = strings.ToLower(rest)
	return key, ok && rest == strings.ToUpper(rest) && slices.Contains(Keys, key)
}

// Allowed are the keys that owners of jobs may use.
type Allowed map[string]bool

// Default is what is allowed unless the administrator says otherwise: a name, and the lossless
// codec. The others change results (threshold), or what else must run for the job to continue
// (move), or what the administrator has chosen to see (observe).
var Default = []string{Job, Codec}

// ParseAllowed parses a list of keys; "none" alone is the empty list.
func ParseAllowed(keys []string) (Allowed, error) {
	a := Allowed{}
	if len(keys) == 1 && keys[0] == "none" {
		return a, nil
	}
	for _, k := range keys {
		if !slices.Contains(Keys, k) {
			return nil, fmt.Errorf("%q: want %s, or none", k, strings.Join(Keys, ", "))
		}
		a[k] = true
	}
	return a, nil
}

// String lists the keys.
func (a Allowed) String() string {
	if len(a) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(a)), ",")
}

// A Policy is what the owner of a job asks for, checked. Empty fields ask for nothing. It is
// comparable.
type Policy struct {
	Observe   string `json:"observe,omitempty"`   // true or false
	Codec     string `json:"codec,omitempty"`     // compact, auto or none
	Threshold string `json:"threshold,omitempty"` // a number from 0 to below 1, or Auto
	Move      string `json:"move,omitempty"`      // true or false
	Aggregate string `json:"aggregate,omitempty"` // host or none
}

// Auto asks for a threshold that is chosen as training goes on.
const Auto = "auto"

// Share returns the threshold, which is 0 for [Auto]; ok is false if none is asked for.
func (p *Policy) Share() (share float64, ok bool) {
	switch p.Threshold {
	case "":
		return 0, false
	case Auto:
		return 0, true
	}
	share, err := strconv.ParseFloat(p.Threshold, 64)
	return share, err == nil
}

// Settings are texts by key, as somebody wrote them, with unchecked values. Unknown keys are
// kept in order to be reported.
type Settings map[string]string

// Annotations returns the settings in annotations of a pod.
func Annotations(all map[string]string) Settings {
	var s Settings
	for name, value := range all {
		if key, ok := strings.CutPrefix(name, Prefix); ok {
			if s == nil {
				s = Settings{}
			}
			s[key] = value
		}
	}
	return s
}

// Read checks settings. It returns those that are allowed and valid, and a sentence for each
// that is not, in a fixed order. name gives the name of a key for people. The name of a job is
// checked only; see ClaimOf.
func (s Settings) Read(allowed Allowed, name func(key string) string) (p Policy, wrong []string) {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		value := s[key]
		said := fmt.Sprintf("%s: %.80q", name(key), value)
		switch {
		case !slices.Contains(Keys, key):
			wrong = append(wrong, fmt.Sprintf("unknown setting %s: want one of %s", name(key), strings.Join(Keys, ", ")))
			continue
		case !allowed[key]:
			wrong = append(wrong, fmt.Sprintf("%s is ignored: the administrator allows %s (--allow-annotations)", said, allowed))
			continue
		}
		if err := p.set(key, value); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s is ignored: %v", said, err))
		}
	}
	return p, wrong
}

// set checks and applies one setting.
func (p *Policy) set(key, value string) error {
	switch key {
	case Job:
		return checkName(value)
	case Observe:
		return oneOf(&p.Observe, value, "true", "false")
	case Codec:
		return oneOf(&p.Codec, value, "compact", "auto", "none")
	case Move:
		return oneOf(&p.Move, value, "true", "false")
	case Aggregate:
		return oneOf(&p.Aggregate, value, "host", "none")
	}
	if value == Auto {
		p.Threshold = value
		return nil
	}
	share, err := strconv.ParseFloat(value, 64)
	if err != nil || !(share >= 0 && share < 1) {
		return fmt.Errorf("want a share from 0 (off) to below 1, such as 0.99, or auto")
	}
	p.Threshold = strconv.FormatFloat(share, 'g', -1, 64)
	return nil
}

func oneOf(field *string, value string, words ...string) error {
	if !slices.Contains(words, value) {
		return fmt.Errorf("want %s", strings.Join(words, " or "))
	}
	*field = value
	return nil
}

// A Pod is what a pod's annotations say of its job.
type Pod struct {
	Namespace string
	Owner     string // name of its top controller; empty: none, or not resolved yet
	Settings  Settings
	Policy    Policy
	Wrong     []string // complaints about Settings
}

// Over returns p with its empty fields taken from o.
func (p Policy) Over(o Policy) Policy {
	for _, f := range []struct{ mine, other *string }{{&p.Observe, &o.Observe}, {&p.Codec, &o.Codec}, {&p.Threshold, &o.Threshold}, {&p.Move, &o.Move}, {&p.Aggregate, &o.Aggregate}} {
		if *f.mine == "" {
			*f.mine = *f.other
		}
	}
	return p
}
