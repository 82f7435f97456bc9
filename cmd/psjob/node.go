package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// output says how a node reports: as text or JSON on standard output, and as JSON in
// a file.
type output struct {
	json bool
	file string
}

func (o *output) register(flags *pflag.FlagSet) {
	flags.BoolVar(&o.json, "json", false, "print JSON, one object per server and worker")
	flags.StringVar(&o.file, "report", "", "also write the node's report to this file as JSON")
}

// newNodeCommand is psjob without a verb: one node of a job, and the root of all
// commands. PS-lite's launchers start the same command line on every node and set
// DMLC_ROLE, so the role is no argument, and flags that mean nothing to a role are
// accepted.
func newNodeCommand(e env) *cobra.Command {
	var options train.Options
	var out output
	var w nodeFlags
	cmd := &cobra.Command{
		Short: "Run a node of a PS-lite training job, configured by DMLC_ROLE and the other DMLC_* variables",
		Long: `psjob runs one node of a job: scheduler, server or worker, according to DMLC_ROLE.
It reads DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_SERVER, DMLC_NUM_WORKER and
PS-lite's other variables. Only workers need the model flags: the first worker
tells the servers how to apply a push. Every flag is also an environment variable:
--learning-rate is PSJOB_LEARNING_RATE.

To try it without a cluster: psjob generate --out text.libsvm
                             psjob local --data text.libsvm`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The most likely mistake of a first attempt with psjob: the answer says
			// what to do instead.
			if _, ok := e.lookup("DMLC_ROLE"); !ok {
				return usagef("DMLC_ROLE is not set: want scheduler, server or worker, or start a whole job with `psjob local`")
			}
			config, err := van.FromEnvironment(e.lookup)
			if err != nil {
				return err
			}
			if err := w.apply(&config, e); err != nil {
				return err
			}
			return runNode(cmd, e, config, options, out)
		},
	}
	registerOptions(cmd.Flags(), &options)
	out.register(cmd.Flags())
	w.register(cmd.Flags())
	return cmd
}

// runNode runs one node and blocks until its job ends. The options are checked for
// workers only: servers get theirs from the first worker, and the scheduler needs
// none. A node that ends early writes no report.
func runNode(cmd *cobra.Command, e env, c van.Config, o train.Options, out output) error {
	switch c.Role {
	case pslite.Scheduler:
		return train.Schedule(cmd.Context(), c)
	case pslite.Server:
		report, err := train.Serve(cmd.Context(), c)
		if err != nil {
			return err
		}
		return out.write(e.stdout, report, "")
	}
	if err := o.Check(); err != nil {
		return usageError{err}
	}
	// Older generations have no message that pushes and pulls: a node would have to
	// guess which of the two was meant.
	if (o.Count.PushPull || o.Model == "mix") && c.Dialect != pslite.DMLC {
		return usagef("--dialect %v: --count-pushpull and --model mix have requests that push and pull, which only dialect %v knows", c.Dialect, pslite.DMLC)
	}
	report, err := train.Work(cmd.Context(), c, o)
	if err != nil {
		return err
	}
	return out.write(e.stdout, report, summary(report))
}

// write prints a report: as a line of JSON, or as text for people, which may be
// empty. The file of --report gets JSON in any case, complete before anything is
// printed.
func (o output) write(w io.Writer, report any, text string) error {
	// One line: the reports of several nodes in one stream can be read line by line.
	line, err := json.Marshal(report)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if o.file != "" {
		if err := os.WriteFile(o.file, line, 0o644); err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
	}
	if !o.json {
		line = []byte(text)
	}
	_, err = w.Write(line)
	return err
}

// summary is a worker's report for people. The first worker speaks for all if the
// figures are those of all.
func summary(r train.WorkerReport) string {
	var b strings.Builder
	// The first worker has printed the same figures; printed again they would look
	// like this worker's own.
	if r.Rank != 0 && r.AllWorkers {
		return ""
	}
	fmt.Fprintf(&b, "worker %d: %s, %d steps, %.1f steps/s", r.Rank, r.Model, r.Steps, r.StepsPerSecond)
	// Figures that do not exist for the model, or are not finite, are nil.
	figure := func(name string, v *float64) {
		if v != nil {
			fmt.Fprintf(&b, ", %s %.4f", name, *v)
		}
	}
	figure("loss", r.Loss)
	figure("accuracy", r.Accuracy)
	figure("AUC", r.AUC)
	figure("test loss", r.TestLoss)
	figure("test accuracy", r.TestAccuracy)
	figure("test AUC", r.TestAUC)
	if r.Checked > 0 {
		fmt.Fprintf(&b, ", %d sums checked", r.Checked)
	}
	fmt.Fprintf(&b, "; pushed %d keys (%d bytes), pulled %d (%d bytes), %d different\n", r.Pushes, r.PushBytes, r.Pulls, r.PullBytes, r.Keys)
	return b.String()
}

// registerOptions adds the flags of everything that a worker does. They are one flat
// list, since the same flags are variables (PSJOB_*) and are passed from local to its
// nodes as they are. A help text begins with the models that the flag is for. Their
// defaults make every model train something sensible in seconds; what has 0 here
// takes a default that depends on the model, see train.Options.
func registerOptions(f *pflag.FlagSet, o *train.Options) {
	f.StringVar(&o.Model, "model", "lr", "model to train: "+strings.Join(train.Models(), ", "))
	// Where samples come from, and how features become keys.
	f.StringVar(&o.Data, "data", "", "training data: libsvm or libffm text (lr, fm), Criteo's log format (dlrm) or idx images (mlp), plain or compressed; from a directory with shard-NNNNN.libsvm each worker reads its own shard")
	f.StringVar(&o.Test, "test", "", "evaluation data in the same format")
	f.StringVar(&o.Labels, "labels", "", "labels of the images; empty: the file next to the images")
	f.BoolVar(&o.UnitRows, "unit-rows", false, "normalize every row to length 1")
	f.StringVar(&o.KeyMap, "key-map", "spread", "mapping of feature IDs to keys: identity, spread (over all servers) or file:PATH with lines of ID and key")
	// How long to train, and in which step with the others.
	f.IntVar(&o.Epochs, "epochs", 5, "number of passes over the data")
	f.IntVar(&o.Batch, "batch", 64, "samples per step of a worker")
	f.IntVar(&o.Steps, "steps", 0, "steps per worker; 0: determined by epochs")
	f.BoolVar(&o.Async, "async", false, "asynchronous: do not wait for the other workers after each step")
	// What servers do with a push. The first worker sends it to them.
	f.StringVar(&o.Server.Rule, "rule", "", "effect of a push on the server: "+strings.Join(kv.StoreRules(), ", ")+" (default: add for count, mix, pingpong and bench, ftrl for lr, adagrad for fm, otherwise sgd)")
	f.Float64Var(&o.Server.LearningRate, "learning-rate", 0, "learning rate (default: 1 for ftrl, otherwise 0.1)")
	f.Float64Var(&o.Server.Beta, "beta", 0, "ftrl and adagrad: beta (default 0.01, suitable for gradients averaged over a batch)")
	f.Float64Var(&o.Server.L1, "l1", 0, "ftrl: L1 regularization")
	f.Float64Var(&o.Server.L2, "l2", 0, "ftrl and sgd: L2 regularization")
	f.Float64Var(&o.Server.Momentum, "server-momentum", 0, "sgd: momentum factor on the servers; 0: no momentum")
	f.IntVar(&o.Server.ValueLength, "value-length", 0, "count, rows, dense: values per key (default 1)")
	// The shapes of models. Those that are 0 or wrong for the chosen one are found by
	// Check.
	f.IntVar(&o.Factors, "factors", 8, "fm: length of the factors")
	f.IntVar(&o.Embedding, "embedding", 16, "dlrm: embedding size")
	f.IntSliceVar(&o.Bottom, "bottom", []int{64}, "dlrm: hidden layer sizes of the bottom MLP (dense features); DLRM's own for Criteo Kaggle are 512,256,64")
	f.IntSliceVar(&o.Top, "top", []int{64}, "dlrm: hidden layer sizes of the top MLP (interactions); DLRM's own are 512,256")
	f.IntVar(&o.Hidden, "hidden", 128, "mlp: hidden units")
	f.Float64Var(&o.Momentum, "momentum", 0, "mlp: momentum factor on the workers; 0: no momentum")
	f.IntVar(&o.Buckets, "buckets", 10_000, "dlrm: hash buckets per categorical column")
	f.IntVar(&o.Block, "tensor-block", 1<<16, "dlrm, mlp: values of a dense tensor per key")
	// What is reported while training goes on.
	f.DurationVar(&o.LogEvery, "log-every", 5*time.Second, "interval at which a worker logs its number of steps; 0: never")
	f.IntVar(&o.CurveEvery, "curve-every", 0, "lr, fm, dlrm, mlp: report time and loss every this many steps; 0: never")
	f.Uint64Var(&o.Seed, "seed", 1, "random seed of initial values, sample order and the choices of count")
	// Workloads that know what every value must be. rows and dense share count's
	// numbers.
	f.IntVar(&o.Count.Keys, "count-keys", 10_000, "count, dense, pingpong: number of distinct keys; rows: number of distinct keys per worker")
	f.IntVar(&o.Count.Batch, "count-batch", 100, "count, rows: keys per step; dense: keys per request")
	f.Float64Var(&o.DensePart, "dense-part", 1, "dense: share of the keys of a request that a worker pulls, others in each step")
	f.Float64Var(&o.Rows.Sparsity, "rows-sparsity", 0.9, "rows: share of a row's smallest values that may be dropped on the way, and of its gradient")
	f.IntVar(&o.Count.Most, "count-most", 3, "count: a push adds between 1 and this number to each value")
	f.Float64Var(&o.Count.Skew, "count-skew", 1, "count: how strongly each worker prefers its favorite keys; 0: not at all")
	f.IntVar(&o.Count.Favourites, "count-favourites", 0, "count: number of IDs that a worker uses at a time; 0: all, with a preference for some")
	f.Float64Var(&o.Count.Common, "count-common", 0, "count: with --count-favourites, the share of a batch that consists of favorites of all workers")
	f.IntVar(&o.Count.Wander, "count-wander", 0, "count: number of steps after which a worker's favorites change; 0: never")
	f.BoolVar(&o.Count.Lens, "count-lens", false, "count: variable length, keys have 1 to 4 values, with lengths on the wire")
	f.BoolVar(&o.Count.PushPull, "count-pushpull", false, "count: use one combined push and pull request per step; only dialect dmlc supports it")
	f.BoolVar(&o.Count.Late, "count-late", false, "count: allow pushes to be applied as late as at the end of the job; sums are not compared, see the servers' digests")
	f.BoolVar(&o.Count.Verify, "count-verify", false, "count: with --count-late, still compare the sums at the end, when all pushes must have been applied")
	f.StringVar(&o.Count.While, "count-while", "", "count: continue after --steps as long as this file exists")
	f.StringVar(&o.Count.Rest, "count-rest", "", "count: directory; a step waits while a file with its number exists there, and logs this")
	f.IntVar(&o.Count.From, "count-from", 0, "count: first step of a worker that takes the place of one that was killed; requires --async")
	f.IntSliceVar(&o.Count.Cut, "count-cut", nil, "count: rank of a worker that was killed, and the step in which it was; the sums may or may not include its last push")
	f.DurationVar(&o.Count.Compute, "count-compute", 0, "count: minimum duration of a step, to simulate computation")
	f.IntVar(&o.Mix.Customers, "mix-customers", 2, "mix: number of customers per app and worker")
	f.IntVar(&o.Mix.Longest, "mix-longest", 1<<14, "mix: number of values of the longest keys")
	f.IntVar(&o.Mix.Largest, "mix-largest", 0, "mix: number of values of an additional key that the first worker pushes and pulls once; 0: none")
	// The benchmark.
	f.IntVar(&o.Keys, "keys", 1_000_000, "bench: scalar keys per request")
	f.IntVar(&o.Rounds, "rounds", 10, "bench: number of pushes and of pulls")
	f.DurationVar(&o.StartAfter, "start-after", 0, "delay before the first request; PS-lite's own servers may not be ready earlier (500ms is enough)")
	f.StringVar(&o.AccessLog, "access-log", "", "file for this worker's accesses, one line per key: key, pushes, bytes pushed, pulls, bytes pulled")
}
