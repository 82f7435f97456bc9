package train

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/planner/dataset"
)

// Options say what a job trains. Only workers read them; they send the servers what
// those need to know. The zero value is not valid: flags have the defaults, in
// package main.
type Options struct {
	Model     string // one of [Models]
	Data      string // training data
	Test      string // data to score at the end, by the first worker; may be empty
	Labels    string // of pictures; empty: beside them
	UnitRows  bool
	KeyMap    string
	Epochs    int
	Batch     int // samples of a worker's step
	Steps     int // 0: as many as the epochs have
	Async     bool
	Server    kv.StoreSettings // what servers do with a push
	Factors   int              // of a factorization machine
	Embedding int              // values of an embedding
	Bottom    []int            // units of the recommender's nets, hidden layers
	Top       []int
	Hidden    int     // of the image net
	Momentum  float64 // of the image net's gradients, see model.Momentum
	Buckets   int     // per categorical column
	Block     int     // largest value of a dense tensor's key
	Seed      uint64
	// LogEvery is how often a worker logs how many steps it has made; 0: never.
	LogEvery time.Duration
	// CurveEvery is the number of steps after which the report gets another mark; 0:
	// none.
	CurveEvery int
	Count      CountOptions
	Mix        MixOptions
	Rows       RowsOptions
	DensePart  float64 // of the keys of a request, that a worker of dense pulls in a step
	Rounds     int     // of a bench
	Keys       int     // of a bench
	AccessLog  string  // where to write the accesses
	// StartAfter is how long a worker waits, once all nodes are there, before its
	// first request. A server of PS-lite's own may not be ready by then, and ends if
	// a request comes too early.
	StartAfter time.Duration
}

// CountOptions describe the workload that pushes whole numbers.
type CountOptions struct {
	Keys   int     // ids are 0..Keys-1
	Batch  int     // keys of a step
	Skew   float64 // exponent of how favourites are preferred; 0: all alike
	Wander int     // steps after which a worker has other favourites; 0: never
	// Favourites is how many ids a worker uses at a time; 0: it uses all of them,
	// some more than others. The share Common of a batch is taken from the favourites
	// of all workers, the first as many ids, instead of from its own.
	Favourites int
	Common     float64
	Most       int  // a push adds 1 to Most to each value of a key; 0: 3
	Lens       bool // id mod 4 + 1 values a key, not ValueLength
	// PushPull makes each step one request that pushes and pulls.
	PushPull bool
	// Late says that pushes may be applied later, by the job's end at the latest:
	// values are not compared, and only the servers' digests show what arrived.
	Late bool
	// Verify compares the sums at the end although pushes may be Late: all must have
	// been applied when the last is answered.
	Verify bool
	// Compute is how long a step takes at least, as if it computed something.
	Compute time.Duration
	// While names a file: beyond Steps, steps are made as long as it exists.
	While string
	// From is the first step of a worker that takes the place of another, which has
	// made those before.
	From int
	// Cut is the rank of a worker that was killed, and the step in whose push it was:
	// nobody knows which of the push's values have been applied.
	Cut []int
	// Rest names a folder: a step whose number is the name of a file in it begins
	// when the file is gone, so that all workers stop between the same two steps
	// until then.
	Rest string
}

// MixOptions describe the workload that uses everything at once.
type MixOptions struct {
	Customers int // of each app in each worker
	Longest   int // values of the customers' longest keys
	Largest   int // values of one key more, of the first worker; 0: none
}

// Models are what psjob can train, and six workloads: count pushes whole numbers and
// checks their sums; pingpong pulls and pushes doubles without a pause and checks their
// sums; mix does everything that PS-lite's clients can do at the same time and checks
// the answers; rows pulls rows, pushes gradients for them and checks
// what is left out on the way; dense has all workers pull one model and checks it to
// the last bit; bench measures how fast keys go.
func Models() []string {
	return []string{"lr", "fm", "dlrm", "mlp", "count", "mix", "rows", "dense", "pingpong", "bench"}
}

// withDefaults fills in what suits the model: the rule and its numbers. FTRL's rate
// is 1, that of the others 0.1.
func (o Options) withDefaults() Options {
	s := &o.Server
	if s.Rule == "" {
		switch o.Model {
		case "lr":
			s.Rule = "ftrl"
		case "fm":
			s.Rule = "adagrad"
		// Workloads whose sums are known.
		case "count", "mix", "rows", "dense", "pingpong", "bench":
			s.Rule = "add"
		default:
			s.Rule = "sgd"
		}
	}
	if o.Model == "pingpong" {
		s.Doubles, s.ValueLength = true, cmp.Or(s.ValueLength, 2)
	}
	if s.LearningRate == 0 {
		s.LearningRate = 0.1
		if s.Rule == "ftrl" {
			s.LearningRate = 1
		}
	}
	// Gradients are means over a batch, and small: a larger Beta would drown them.
	if s.Beta == 0 {
		s.Beta = 0.01
	}
	return o
}

// Check returns the first fault of the options, in the names of the flags. It is
// called before a node registers: a worker that fails later takes the whole job with
// it.
func (o Options) Check() error {
	o = o.withDefaults()
	positive := func(name string, v int) error {
		if v < 1 {
			return fmt.Errorf("--%s %d: want 1 or more", name, v)
		}
		return nil
	}
	if !slices.Contains(Models(), o.Model) {
		return fmt.Errorf("--model %q: want one of %s", o.Model, strings.Join(Models(), ", "))
	}
	// A key map may name a file, which is read here and again by the worker.
	if _, err := dataset.ParseKeyMap(o.KeyMap); err != nil {
		return fmt.Errorf("--key-map: %w", err)
	}
	// Checked for every model: the defaults are positive, so only a flag can make
	// them wrong.
	for name, v := range map[string]int{"batch": o.Batch, "factors": o.Factors, "embedding": o.Embedding,
		"hidden": o.Hidden, "buckets": o.Buckets, "tensor-block": o.Block, "rounds": o.Rounds, "keys": o.Keys,
		"mix-customers": o.Mix.Customers, "count-keys": o.Count.Keys, "count-batch": o.Count.Batch} {
		if err := positive(name, v); err != nil {
			return err
		}
	}
	for name, units := range map[string][]int{"bottom": o.Bottom, "top": o.Top} {
		for _, n := range units {
			if err := positive(name, n); err != nil {
				return err
			}
		}
	}
	if o.Count.While != "" && o.Async {
		return fmt.Errorf("--count-while %s: not with --async, whose workers take steps independently", o.Count.While)
	}
	if o.Steps < 0 || o.Epochs < 0 || (o.Epochs == 0 && o.Steps == 0) {
		return fmt.Errorf("--epochs %d, --steps %d: want one of them above 0", o.Epochs, o.Steps)
	}
	if o.CurveEvery < 0 {
		return fmt.Errorf("--curve-every %d: want 0 or more", o.CurveEvery)
	}
	switch {
	// Momentum sums up gradients by their place in a push, so the groups must be the
	// same in each step.
	case !(o.Momentum >= 0 && o.Momentum < 1):
		return fmt.Errorf("--momentum %v: want 0 (none) to below 1", o.Momentum)
	case o.Momentum > 0 && o.Model != "mlp":
		return fmt.Errorf("--momentum %v: only for mlp, whose workers use the same parameters in every step", o.Momentum)
	}
	if o.StartAfter < 0 {
		return fmt.Errorf("--start-after %v: want 0 or more", o.StartAfter)
	}
	// The servers would refuse wrong settings, but only once the job runs.
	if err := o.settings(1).Check(); err != nil {
		return fmt.Errorf("--rule and its numbers: %w", err)
	}
	switch o.Model {
	case "count":
		return o.checkCount()
	case "mix":
		return o.checkMix()
	case "rows":
		return o.checkRows()
	case "dense":
		return o.checkDense()
	case "pingpong":
		return o.checkPingPong()
	case "bench":
		return nil
	}
	if o.Data == "" {
		return fmt.Errorf("--data is required: name a file, or create one with `psjob generate`")
	}
	return nil
}

// checkCount returns the first fault of the options that count depends on.
func (o Options) checkCount() error {
	c := o.Count
	if o.Server.Rule != "add" && o.Server.Rule != "assign" && !c.Late {
		return fmt.Errorf("--rule %s: count requires add or assign, whose sums are known, or --count-late", o.Server.Rule)
	}
	return c.check()
}

// checkRows returns the first fault of the options that rows depends on.
func (o Options) checkRows() error {
	switch s := o.Rows.Sparsity; {
	case o.Server.Rule != "add":
		return fmt.Errorf("--rule %s: rows requires add, whose sums are known", o.Server.Rule)
	case o.Steps < 1:
		return fmt.Errorf("--steps %d: rows wants 1 or more", o.Steps)
	case !(s >= 0 && s < 1):
		return fmt.Errorf("--rows-sparsity %v: want 0 to below 1", s)
	}
	return o.Count.check()
}

// check returns the first fault of the numbers, in the names of the flags.
func (c CountOptions) check() error {
	switch {
	case c.Keys < 1 || c.Batch < 1:
		return fmt.Errorf("--count-keys %d, --count-batch %d: want 1 or more", c.Keys, c.Batch)
	case c.Most < 0:
		return fmt.Errorf("--count-most %d: want 1 or more", c.Most)
	// A step draws different keys, and would never find enough.
	case c.Batch > c.Keys:
		return fmt.Errorf("--count-batch %d: there are only --count-keys %d", c.Batch, c.Keys)
	case c.Skew < 0 || c.Skew > 4:
		return fmt.Errorf("--count-skew %v: want 0 to 4", c.Skew)
	case c.Wander < 0:
		return fmt.Errorf("--count-wander %d: want 0 or more", c.Wander)
	// A batch is drawn from the favourites alone, so there must be as many.
	case c.Favourites < 0 || c.Favourites > c.Keys || c.Favourites > 0 && c.Favourites < c.Batch:
		return fmt.Errorf("--count-favourites %d: want 0, or --count-batch %d to --count-keys %d", c.Favourites, c.Batch, c.Keys)
	case c.Common < 0 || c.Common > 1:
		return fmt.Errorf("--count-common %v: want 0 to 1", c.Common)
	// The last step is announced by a value that all must see at once.
	case c.While != "" && c.Late:
		return fmt.Errorf("--count-while %s: not with --count-late, in which workers do not coordinate", c.While)
	case c.Compute < 0:
		return fmt.Errorf("--count-compute %v: want 0 or more", c.Compute)
	case c.From < 0:
		return fmt.Errorf("--count-from %d: want 0 or more", c.From)
	case len(c.Cut) > 0 && (len(c.Cut) != 2 || c.Cut[0] < 0 || c.Cut[1] < 0):
		return fmt.Errorf("--count-cut %v: want a worker's rank and a step", c.Cut)
	}
	return nil
}

// checkMix returns the first fault of mix's options. Only so many customers of a
// worker have keys that are apart from each other's.
func (o Options) checkMix() error {
	switch m := o.Mix; {
	case m.Customers > 16:
		return fmt.Errorf("--mix-customers %d: at most 16", m.Customers)
	case m.Longest < 0 || m.Longest > kv.MaxValueLength:
		return fmt.Errorf("--mix-longest %d: want 0 to %d", m.Longest, kv.MaxValueLength)
	case m.Largest < 0 || m.Largest > kv.MaxValueLength:
		return fmt.Errorf("--mix-largest %d: want 0 to %d", m.Largest, kv.MaxValueLength)
	}
	return nil
}

// settings returns the configuration for the servers, for keys that have width values
// unless a request says otherwise.
func (o Options) settings(width int) kv.StoreSettings {
	s := o.Server
	// Rules that add need no steps: sums are the same in any order, but for rounding.
	s.Synchronous = !o.Async && s.TakesGradients()
	// A key that is pulled before it is pushed has as many values as the model wants.
	if s.ValueLength == 0 {
		s.ValueLength = width
	}
	return s
}
