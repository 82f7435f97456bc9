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
	"github.com/psidecar/psidecar/internal/policy"
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
	flags.Int64Var(&f.Memory, "codec-memory", 1<<30, "memory limit in bytes for residuals and remembered values, all jobs together; further layers are sent unmodified")
}

// RegisterRule adds only the flags that make a rule.
func (f *RuleFlags) RegisterRule(flags *pflag.FlagSet) {
	r := &f.Rule
	flags.Var((*shareFlag)(r), "threshold", "share of each layer's pushed values to hold back, such as 0.99: only the largest are sent, the others are added to the next push; auto: a share that rises as training goes on, to 0.99 at most; 0: disabled")
	flags.IntVar(&r.Lifespan, "threshold-lifespan", values.DefaultLifespan, "number of pushes after which a layer's threshold is recomputed")
	flags.IntVar(&r.Warmup, "threshold-warmup", 0, "number of pushes of a layer over which the held back share rises to --threshold")
	flags.IntVar(&r.Until, "threshold-until", 0, "number of worker steps after which nothing is held back, for example shortly before the last step of a job whose workers save the model; in the preceding quarter, the share sent rises gradually; 0: no end")
	flags.BoolVar(&r.Unpulled, "threshold-unpulled", false, "treat every push as a gradient; by default, no lossy codec changes pushes of keys that the worker has not pulled, the first push of a connection to a server, and the first push of a long key, because they may be initial values")
	flags.BoolVar(&r.SameHost, "same-host", false, "also apply lossy codecs other than --threshold to connections within a host, and --threshold in a job of one host, where they save no network traffic")
	flags.StringVar(&f.Slim, "slim", "", "ALPHA,EPSILON[,ROUNDS[,changes]]: send only the share ALPHA of pushes and pulls, such as 0.3; EPSILON of it is drawn at random, the rest are the largest values, chosen again every ROUNDS (20) rounds; with changes, a pull sends the values that differ most from the worker's copy")
	flags.IntVar(&r.Quantize, "quantize", 0, "stochastically round pushed values to this many bits, 1 to 8; 0: disabled; with --threshold, --slim or --threshold-activations, applies to the values sent")
	flags.BoolVar(&r.Unchanged, "unchanged", false, "omit values from a pull's answer that are bit-identical to those this worker last received")
	flags.Float64Var(&r.PullThreshold, "pull-threshold", 0, "share of each layer's pulled values to omit, such as 0.95: only those that differ most from the worker's copy are sent (EF21-P); a key's first pull is sent whole; 0: disabled")
	flags.IntVar(&r.PullQuantize, "pull-quantize", 0, "round the differences between a pull and the worker's copy to this many bits, 2 to 8, with one scale per 512 values; later pulls correct the rounding error; 0: disabled; with --pull-threshold, applies to the values sent")
	flags.Float64Var(&r.Activations, "threshold-activations", 0, "share of each row's values to omit from pulled activations, such as 0.95, and the same positions from their pushed gradients (DCT-MP); the smallest values are dropped, not deferred; not for models that are pulled as a whole; 0: disabled")
	flags.IntVar(&r.Row, "row", 0, "number of values per row of activations; 0: one row per key")
	flags.BoolVar(&r.ActivationsPushed, "activations-pushed", false, "activations are exchanged through the servers: workers that push keys before they pull them push activations, and workers that pull them push the gradients")
	flags.StringVar(&r.Wire, "wire", "", "send float32 values of pushes and pulls as bf16 or fp16, rounded to nearest even; with --threshold, --pull-threshold or --threshold-activations, applies to the values sent")
	flags.StringVar(&r.Elements, "char-values", "", "number format of values with type OTHER or CHAR (bytes), as sent by MXNet and BytePS: float32, float64, float16 or bfloat16; values whose command names another type, and all if empty, are not changed")
}

// shareFlag is --threshold: a number or auto.
type shareFlag values.Rule

// String is what Set reads.
func (f *shareFlag) String() string {
	if f.Auto {
		return policy.Auto
	}
	return strconv.FormatFloat(f.Threshold, 'g', -1, 64)
}

// Set sets the rule's threshold; it is checked with the rule as a whole.
func (f *shareFlag) Set(text string) error {
	if text == policy.Auto {
		f.Threshold, f.Auto = values.AutoThreshold, true
		return nil
	}
	share, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return errors.New("want a share such as 0.99, or auto")
	}
	f.Threshold, f.Auto = share, false
	return nil
}

// Type is what package cli says is wanted by.
func (f *shareFlag) Type() string { return "share" }

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
