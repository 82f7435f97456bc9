package daemon

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// RulesKey is the key of the configuration file that has a list of rules for values. Each
// rule has the flags' names as keys, besides job, keys, layers and so on (values.Rule). They
// come before the rule of the flags, which is the last one.
const RulesKey = "codec-rules"

// RuleFlags are the flags about values. Each sets a field of one rule, for all jobs and keys.
//
// Rules come from several places. For a value the first one that concerns its job and keys
// counts, in this order:
//
//   - the planner's, which change while jobs run (follow.go);
//   - those of the configuration file, under RulesKey (rulefile.go);
//   - the rule of the flags.
//
// The wish of a job's owner for a threshold, as far as it is allowed (package policy),
// replaces that of the latter two.
//
// A flag itself is set on the command line, else by the environment, else by the
// configuration file, else by its default; package cli sees to that before these are read.
type RuleFlags struct {
	Rule   values.Rule    // without Slim
	Slim   string         // of --slim
	Memory int64          // of --codec-memory
	set    *pflag.FlagSet // of the command, where these are among others
}

// Register adds the flags to a command's, of which --config is one.
func (f *RuleFlags) Register(flags *pflag.FlagSet) {
	f.set = flags
	f.RegisterRule(flags)
	flags.Int64Var(&f.Memory, "codec-memory", 1<<30, "bytes for values that wait to be sent or are remembered, all jobs together; layers beyond go as they are")
}

// RegisterRule adds only the flags that make a rule.
func (f *RuleFlags) RegisterRule(flags *pflag.FlagSet) {
	r := &f.Rule
	flags.Float64Var(&r.Threshold, "threshold", 0, "share of each layer's pushed values that waits, such as 0.99: only the largest go, the others are added to the next push; 0: none waits")
	flags.IntVar(&r.Lifespan, "threshold-lifespan", values.DefaultLifespan, "pushes after which a layer's threshold is computed anew")
	flags.IntVar(&r.Warmup, "threshold-warmup", 0, "pushes of a layer in which the share that waits rises to --threshold")
	flags.IntVar(&r.Drain, "threshold-drain", 0, "one in so many pushes of a layer, at random, sends all that waits; 0: none")
	flags.IntVar(&r.Until, "threshold-until", 0, "steps of a worker after which nothing waits, such as some before the last one of a job whose workers save their model; in the quarter before, more and more goes; 0: no end")
	flags.BoolVar(&r.Unpulled, "threshold-unpulled", false, "take every push for a gradient; otherwise pushes of keys that their worker has not pulled go whole, as do a worker's first push to a server and a long key's first one: they may be initial values")
	flags.BoolVar(&r.SameHost, "same-host", false, "apply lossy codecs to connections within a host too, where they save no traffic of the network")
	flags.StringVar(&f.Slim, "slim", "", "ALPHA,EPSILON[,ROUNDS[,changes]]: of pushes and pulls only the share ALPHA goes, such as 0.3, of which EPSILON is drawn at random and the others are the largest, chosen anew every ROUNDS (20); with changes those of a pull that differ most from what the worker has")
	flags.IntVar(&r.Quantize, "quantize", 0, "bits to which pushed values are rounded at random, 1 to 8; 0: none. With --threshold, --slim or --threshold-activations those that go are")
	flags.IntVar(&r.QuantizeBucket, "quantize-bucket", values.DefaultQuantizeBucket, "values that share a scale when they are rounded")
	flags.BoolVar(&r.Unchanged, "unchanged", false, "leave out of a pull's answer what is bit for bit what this worker last got")
	flags.Float64Var(&r.PullThreshold, "pull-threshold", 0, "share of each layer's pulled values that is left out, such as 0.95: only those that differ most from what the worker has go (EF21-P), a key's first pull whole; 0: none")
	flags.IntVar(&r.PullQuantize, "pull-quantize", 0, "bits to which a pull's differences from what the worker has are rounded, 2 to 8, with a scale for each --quantize-bucket; what rounding takes comes with later pulls; 0: none. With --pull-threshold those that go are")
	flags.Float64Var(&r.Activations, "threshold-activations", 0, "of activations that workers pull, share of each row's values that is left out, such as 0.95, the smallest, and of the gradients that they push for them the same positions (DCT-MP); nothing comes later. Not for models that are pulled as a whole; 0: none")
	flags.IntVar(&r.Row, "row", 0, "values of a row of activations; 0: what belongs to a key")
	flags.BoolVar(&r.ActivationsPushed, "activations-pushed", false, "activations are exchanged through the servers: workers that push keys before they pull them push activations, those that pull them push the gradients")
	flags.StringVar(&r.Wire, "wire", "", "bf16 or fp16: float32 values of pushes and pulls go as numbers of 16 bits, rounded to nearest even; nothing is remembered. With --threshold, --pull-threshold or --threshold-activations those that go are")
	flags.StringVar(&r.Elements, "char-values", "", "what values are whose type does not say it, as MXNet's and BytePS's (bytes, of type OTHER or CHAR): float32, float64, float16 or bfloat16; empty: they are left alone")
}

// rules returns the rules of the file that --config names, and then that of the flags.
func (f *RuleFlags) rules() ([]values.Rule, error) {
	if f.Memory < 0 {
		return nil, cli.Usagef("--codec-memory %d: want 0 or more bytes", f.Memory)
	}
	rules, err := f.fromFile()
	if err != nil {
		return nil, err
	}
	// The last rule, so that those of the file, which are for certain jobs and keys, are
	// found first.
	own, err := f.Own()
	if err != nil {
		return nil, err
	}
	return append(rules, own...), nil
}

// Own returns the rule of the flags; none if they ask for nothing. Errors name the flag.
func (f *RuleFlags) Own() ([]values.Rule, error) {
	// A copy: Slim is parsed into it, and the flags stay as they were set.
	r := f.Rule
	if f.Slim != "" {
		s, err := parseSlim(f.Slim)
		if err != nil {
			return nil, err
		}
		r.Slim = s
	}
	if r.Lifespan < 1 {
		return nil, cli.Usagef("--threshold-lifespan %d: want 1 push or more", r.Lifespan)
	}
	if err := r.Check(); err != nil {
		return nil, cli.Usagef("--%w", err)
	}
	// The other flags only qualify these; alone they make no rule.
	if r.Threshold == 0 && r.Slim == nil && r.Quantize == 0 && !r.Unchanged && r.PullThreshold == 0 && r.PullQuantize == 0 && r.Activations == 0 && r.Wire == "" {
		return nil, nil
	}
	return []values.Rule{r}, nil
}

// parseSlim parses the value of --slim.
func parseSlim(text string) (*values.Slim, error) {
	parts := strings.Split(text, ",")
	bad := cli.Usagef("--slim %q: want ALPHA,EPSILON or ALPHA,EPSILON,ROUNDS or ALPHA,EPSILON,ROUNDS,changes, such as 0.3,0.15,20", text)
	var s values.Slim
	// changes can only stand after ROUNDS.
	if len(parts) == 4 && strings.TrimSpace(parts[3]) == "changes" {
		s.Changes, parts = true, parts[:3]
	}
	if len(parts) < 2 || len(parts) > 3 {
		return nil, bad
	}
	var errs [3]error
	s.Alpha, errs[0] = strconv.ParseFloat(strings.TrimSpace(parts[0]), 64)
	s.Epsilon, errs[1] = strconv.ParseFloat(strings.TrimSpace(parts[1]), 64)
	if len(parts) == 3 {
		if s.Rounds, errs[2] = strconv.Atoi(strings.TrimSpace(parts[2])); errs[2] == nil && s.Rounds < 1 {
			return nil, bad
		}
	}
	if errors.Join(errs[:]...) != nil {
		return nil, bad
	}
	return &s, nil
}

// path returns the configuration file's path, or "".
func (f *RuleFlags) path() string {
	path, err := f.set.GetString("config")
	if err != nil {
		return ""
	}
	return path
}

// fromFile returns the rules of the configuration file.
func (f *RuleFlags) fromFile() ([]values.Rule, error) {
	path := f.path()
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading --config: %w", err)
	}
	var file map[string]yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, cli.Usagef("--config %s: %w", path, err)
	}
	// The file has settings of other parts as well, which are not looked at here.
	node, ok := file[RulesKey]
	if !ok {
		return nil, nil
	}
	rules, err := values.ReadYAML(&node)
	if err != nil {
		return nil, cli.Usagef("--config %s, line %d: %s: %w", path, node.Line, RulesKey, err)
	}
	return rules, nil
}
