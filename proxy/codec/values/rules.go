package values

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Rule says what becomes of the values of a job's keys. Zero fields change nothing, and
// of several rules the first that matches a key counts alone: rules are not merged. In
// JSON and YAML the names are those of the flags. A Rule is plain data; compile turns a
// list of them into spans.
type Rule struct {
	// Job is the job's name, or its scheduler's address; empty: all jobs.
	Job string `json:"job,omitempty" yaml:"job"`
	// Keys are those that the rule is for; the zero range: all.
	Keys Range `json:"keys,omitzero" yaml:"keys"`
	// LeastValues leaves alone keys that have fewer values.
	LeastValues int `json:"least-values,omitempty" yaml:"least-values"`
	// Elements is what a values frame of type CHAR or OTHER contains, which is how
	// PS-lite labels values of char and of types it does not know: float32, float64,
	// float16 or bfloat16; empty: such frames are left alone, as are those whose command
	// says that they contain something else ([element.OfChars]).
	Elements string `json:"elements,omitempty" yaml:"elements"`

	// Pushes. Threshold is the share of a layer's values that waits (DCT's sparsity
	// factor), for Lifespan pushes under the same threshold. In the first Warmup pushes
	// of a layer the share rises to it; with Drain, one push in that many sends
	// everything that waits, on average.
	Threshold float64 `json:"threshold,omitempty" yaml:"threshold"`
	// Auto has as much of each layer wait as costs little, Threshold at most: see
	// [threshold.Config].
	Auto     bool `json:"threshold-auto,omitempty" yaml:"threshold-auto"`
	Lifespan int  `json:"threshold-lifespan,omitempty" yaml:"threshold-lifespan"`
	Warmup   int  `json:"threshold-warmup,omitempty" yaml:"threshold-warmup"`
	Drain    int  `json:"threshold-drain,omitempty" yaml:"threshold-drain"`
	// Until is the number of a worker's steps after which a layer has no residual any
	// more: all of it goes along with the pushes from then on, and a growing part of
	// it in the quarter of the steps before. See steps. It is for jobs whose workers
	// save their model after a known number of steps.
	Until int `json:"threshold-until,omitempty" yaml:"threshold-until"`
	// End is Until counted from when the rule begins to hold for a layer, and gradual
	// over all of these pushes. Without a Threshold it is for layers that had one by
	// another rule until then; there is no threshold afterwards.
	End int `json:"threshold-end,omitempty" yaml:"threshold-end"`
	// Unpulled takes every push for a gradient. Otherwise Threshold, Slim, Quantize and
	// Wire do not apply to a push of a key before its worker has pulled it, of a dense
	// key after pushing it, nor to a link's first push: these may be initial values.
	Unpulled bool `json:"threshold-unpulled,omitempty" yaml:"threshold-unpulled"`
	// SameHost applies the lossy codecs to connections within a host as well, where
	// they save no network traffic.
	SameHost bool `json:"same-host,omitempty" yaml:"same-host"`
	// Layers are ranges of keys of few values, each with a threshold of its own; keys
	// outside of them form one more. A key of [DenseValues] or more is a layer by
	// itself.
	Layers []Range `json:"layers,omitempty" yaml:"layers"`
	// Quantize is the number of bits to which pushed values are rounded, in buckets of
	// QuantizeBucket.
	Quantize       int `json:"quantize,omitempty" yaml:"quantize"`
	QuantizeBucket int `json:"quantize-bucket,omitempty" yaml:"quantize-bucket"`

	// Pushes and pulls.
	Slim *Slim `json:"slim,omitempty" yaml:"slim"`
	// Pulls. Unchanged leaves out values that equal those that the worker got last.
	Unchanged bool `json:"unchanged,omitempty" yaml:"unchanged"`
	// With error feedback: PullThreshold is the share of a layer's values that is
	// left out, those that differ least from the worker's; PullQuantize is the number
	// of bits to which differences are rounded, in buckets of QuantizeBucket.
	PullThreshold float64 `json:"pull-threshold,omitempty" yaml:"pull-threshold"`
	PullQuantize  int     `json:"pull-quantize,omitempty" yaml:"pull-quantize"`

	// Activations, pulled by rows and gradients for them pushed (DCT-MP): the share of
	// each row's values that is left out of a pull's answer, the smallest by magnitude,
	// and of the worker's next push of its keys. A row has the values of a key or, with
	// Row, that many values. With Pushed they are exchanged through the server: a
	// worker that pushes keys before pulling them pushes activations, one that pulls
	// them first pushes gradients.
	Activations       float64 `json:"threshold-activations,omitempty" yaml:"threshold-activations"`
	Row               int     `json:"row,omitempty" yaml:"row"`
	ActivationsPushed bool    `json:"activations-pushed,omitempty" yaml:"activations-pushed"`

	// Wire is the format in which float32 values of pushes and pulls are sent: bf16
	// or fp16; empty: unchanged.
	Wire string `json:"wire,omitempty" yaml:"wire"`
}

// Slim has the parameters of Slim-DP: the share Alpha of the values goes, of which
// Epsilon are drawn at random; the others are the core, the largest values, which is
// chosen again every Rounds pushes or pulls. With Changes the core of a pull is not
// the largest parameters, as in Slim-DP, but those that differ most from the
// worker's, chosen in each pull.
type Slim struct {
	Alpha   float64 `json:"alpha" yaml:"alpha"`
	Epsilon float64 `json:"epsilon" yaml:"epsilon"`
	Rounds  int     `json:"rounds" yaml:"rounds"`
	Changes bool    `json:"changes,omitempty" yaml:"changes"`
}

// Defaults of a Rule's fields.
const (
	DefaultLifespan       = 1000
	DefaultQuantizeBucket = 512
	DefaultSlimRounds     = 20
	// AutoThreshold is Threshold where Auto is asked for by a word.
	AutoThreshold = 0.99
)

// lossless returns the rule without what changes values.
func (r *Rule) lossless() Rule {
	l := *r
	l.Threshold, l.Auto, l.Quantize, l.Slim = 0, false, 0, nil
	l.PullThreshold, l.PullQuantize, l.Wire = 0, 0, ""
	l.Activations, l.Row, l.ActivationsPushed = 0, 0, false
	return l
}

// withDefaults returns a copy with the numbers filled in that the rule leaves out.
// The rule itself stays as it was given, which is how it is shown.
func (r *Rule) withDefaults() Rule {
	d := *r
	set := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	set(&d.Lifespan, DefaultLifespan)
	set(&d.QuantizeBucket, DefaultQuantizeBucket)
	if d.Keys == (Range{}) {
		d.Keys = Range{0, math.MaxUint64}
	}
	if d.Slim != nil {
		s := *d.Slim
		set(&s.Rounds, DefaultSlimRounds)
		d.Slim = &s
	}
	return d
}

// Check returns the first fault of the rule, in the names of the flags.
func (r *Rule) Check() error {
	// Defaults are filled in before the check; errors quote the values as they were
	// given.
	d := r.withDefaults()
	switch {
	case !(r.Threshold >= 0 && r.Threshold < 1):
		return fmt.Errorf("threshold %v: want a sparsity from 0 (off) to below 1, such as 0.99", r.Threshold)
	case r.Auto && r.Threshold == 0:
		return errors.New("threshold-auto needs threshold, the largest share to hold back, such as 0.99")
	case d.Lifespan < 1:
		return fmt.Errorf("threshold-lifespan %d: want 1 push or more", r.Lifespan)
	case r.Warmup < 0 || r.Drain < 0:
		return fmt.Errorf("threshold-warmup %d, threshold-drain %d: want 0 (off) or a number of pushes", r.Warmup, r.Drain)
	case r.Until < 0 || r.End < 0:
		return fmt.Errorf("threshold-until %d, threshold-end %d: want 0 (no end) or a number of pushes", r.Until, r.End)
	case r.Quantize < 0 || r.Quantize > 8:
		return fmt.Errorf("quantize %d: want 1 to 8 bits, or 0 (off)", r.Quantize)
	case d.QuantizeBucket < 8 || d.QuantizeBucket > 1<<16:
		return fmt.Errorf("quantize-bucket %d: want 8 to %d values", r.QuantizeBucket, 1<<16)
	case r.LeastValues < 0:
		return fmt.Errorf("least-values %d: want 0 or more", r.LeastValues)
	case r.Threshold > 0 && r.Slim != nil:
		return errors.New("threshold and slim exclude each other: both choose which values of a push go")
	case r.Slim != nil && r.Unchanged:
		return errors.New("slim and unchanged exclude each other: both choose which values of a pull go")
	}
	if err := errors.Join(r.checkPulls(), r.checkActivations()); err != nil {
		return err
	}
	if s := d.Slim; s != nil {
		switch {
		case !(s.Alpha > 0 && s.Alpha < 1):
			return fmt.Errorf("slim alpha %v: want above 0 and below 1", s.Alpha)
		case !(s.Epsilon >= 0 && s.Epsilon <= s.Alpha):
			return fmt.Errorf("slim epsilon %v: want 0 to alpha, which is %v", s.Epsilon, s.Alpha)
		case s.Rounds < 1:
			return fmt.Errorf("slim rounds %d: want 1 or more", s.Rounds)
		}
	}
	if r.Elements != "" {
		if _, err := element.Parse(r.Elements); err != nil {
			return err
		}
	}
	for i, l := range r.Layers {
		if l.First > l.Last || i > 0 && l.First <= r.Layers[i-1].Last {
			return fmt.Errorf("layers: %s: want ascending ranges that do not overlap", l)
		}
	}
	if d.Keys.First > d.Keys.Last {
		return fmt.Errorf("keys %s: the first is behind the last", d.Keys)
	}
	return nil
}

// Range is a range of keys, both ends included, written first-last.
type Range struct{ First, Last uint64 }

// String returns what [Range.UnmarshalText] reads.
func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// MarshalText writes first-last.
func (r Range) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads first-last, or one key.
func (r *Range) UnmarshalText(text []byte) (err error) {
	first, last, both := strings.Cut(string(text), "-")
	if r.First, err = strconv.ParseUint(strings.TrimSpace(first), 10, 64); err != nil {
		return fmt.Errorf("keys %q: want first-last, both whole numbers", text)
	}
	if r.Last = r.First; both {
		if r.Last, err = strconv.ParseUint(strings.TrimSpace(last), 10, 64); err != nil {
			return fmt.Errorf("keys %q: want first-last, both whole numbers", text)
		}
	}
	return nil
}

// maxRules bounds a list of rules: every link compiles it, and every message is cut by
// it.
const maxRules = 64

// CheckRules returns the first fault of the rules.
func CheckRules(rules []Rule) error {
	if len(rules) > maxRules {
		return fmt.Errorf("%d rules, at most %d are allowed", len(rules), maxRules)
	}
	for i := range rules {
		if err := rules[i].Check(); err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return nil
}

// ParseRules reads a JSON list of rules and checks it.
func ParseRules(text io.Reader) ([]Rule, error) {
	all, err := io.ReadAll(io.LimitReader(text, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("reading rules: %w", err)
	}
	var rules []Rule
	d := json.NewDecoder(bytes.NewReader(all))
	d.DisallowUnknownFields()
	if err := d.Decode(&rules); err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	return rules, CheckRules(rules)
}

// ReadYAML reads a list of rules from YAML and checks it. Unknown names are errors, as
// in ParseRules. "threshold: auto" is what the flag is.
func ReadYAML(node *yaml.Node) ([]Rule, error) {
	for _, rule := range node.Content {
		for i := 0; i+1 < len(rule.Content); i += 2 {
			if name, value := rule.Content[i], rule.Content[i+1]; name.Value == "threshold" && value.Value == policy.Auto {
				*value = yaml.Node{Kind: yaml.ScalarNode, Value: strconv.FormatFloat(AutoThreshold, 'g', -1, 64)}
				rule.Content = append(rule.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "threshold-auto"}, &yaml.Node{Kind: yaml.ScalarNode, Value: "true"})
			}
		}
	}
	text, err := yaml.Marshal(node)
	if err != nil {
		return nil, err
	}
	var rules []Rule
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&rules); err != nil {
		return nil, err
	}
	return rules, CheckRules(rules)
}
