package train

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// defaults are the options as the command line has them.
func defaults(model string) Options {
	return Options{Model: model, KeyMap: "spread", Epochs: 5, Batch: 32, Factors: 4, Embedding: 8, Bottom: []int{16}, Top: []int{16, 8}, Hidden: 16,
		Buckets: 200, Block: 4096, Seed: 1, Keys: 1000, Rounds: 3, DensePart: 1, Count: CountOptions{Keys: 500, Batch: 40, Skew: 1},
		Mix: MixOptions{Customers: 2, Longest: 2000}}
}

func config(t testing.TB, servers, workers int) van.Config {
	t.Helper()
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return van.Config{Servers: servers, Workers: workers, Root: "127.0.0.1", RootPort: l.Addr().(*net.TCPAddr).Port,
		NodeHost: "127.0.0.1", Patience: time.Minute, LostAfter: 10 * time.Second, Logger: slog.Default()}
}

// runJob runs a whole job in this process. serve is [Serve] as a rule.
func runJob(t testing.TB, c van.Config, serve func(context.Context, van.Config) error, o func(i int) Options) ([]WorkerReport, error) {
	t.Helper()
	if serve == nil {
		serve = func(ctx context.Context, c van.Config) error { _, err := Serve(ctx, c); return err }
	}
	reports := make([]WorkerReport, c.Workers)
	group, ctx := errgroup.WithContext(t.Context())
	as := func(r pslite.Role) van.Config { own := c; own.Role = r; return own }
	group.Go(func() error { return Schedule(ctx, as(pslite.Scheduler)) })
	for range c.Servers {
		group.Go(func() error { return serve(ctx, as(pslite.Server)) })
	}
	for i := range c.Workers {
		group.Go(func() error {
			report, err := Work(ctx, as(pslite.Worker), o(i))
			reports[report.Rank] = report
			return err
		})
	}
	return reports, group.Wait()
}

func mustRun(t testing.TB, c van.Config, o Options) []WorkerReport {
	t.Helper()
	reports := require.Value(runJob(t, c, nil, func(int) Options { return o }))(t)
	return reports
}

func textFile(t testing.TB, o dataset.TextOptions) string {
	t.Helper()
	return generated(t, "text.libsvm", func(f *os.File) error { _, err := dataset.WriteLibsvm(f, dataset.SyntheticText(o)); return err })
}

func generated(t testing.TB, name string, write func(*os.File) error) string {
	t.Helper()
	f := require.Value(os.Create(filepath.Join(t.TempDir(), name)))(t)
	defer f.Close()
	require.NoError(t, write(f))
	return f.Name()
}

func TestLogisticRegressionLearns(t *testing.T) {
	o := defaults("lr")
	o.Data = textFile(t, dataset.TextOptions{Samples: 2000, Features: 3000, Words: 40, Topics: 10, Noise: -1, Seed: 3})
	o.Test = textFile(t, dataset.TextOptions{Samples: 500, Features: 3000, Words: 40, Topics: 10, Noise: -1, Seed: 3})
	for name, change := range map[string]func(*Options){
		"synchronous":               func(*Options) {},
		"asynchronous":              func(o *Options) { o.Async = true },
		"servers that add":          func(o *Options) { o.Server.Rule, o.Server.LearningRate, o.Epochs = "add", 10, 8 },
		"asynchronous, add, assign": func(o *Options) { o.Server.Rule, o.Server.LearningRate, o.Async = "assign", 5, true },
		"identity keys":             func(o *Options) { o.KeyMap = "identity" },
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			change(&o)
			o.CurveEvery = 20
			for _, r := range mustRun(t, config(t, 2, 4), o) {
				if r.Accuracy == nil || *r.Accuracy < 0.97 || !r.AllWorkers {
					t.Errorf("worker %d: %s", r.Rank, figuresOf(r))
				}
				if r.Rank == 0 && (r.TestAccuracy == nil || *r.TestAccuracy < 0.9) {
					t.Errorf("on test data: %s", figuresOf(r))
				}
				if last := len(r.Curve) - 1; last+1 != r.Steps/20 || r.Curve[last].Step != r.Steps/20*20 || r.Curve[last].Loss >= r.Curve[0].Loss || r.Curve[last].Seconds > r.Seconds {
					t.Errorf("worker %d: its curve is %+v", r.Rank, r.Curve)
				}
				if r.Samples != 500 || r.Steps != o.Epochs*16 || r.Pushes == 0 || r.PushBytes != 4*r.Pushes {
					t.Errorf("worker %d: %+v", r.Rank, r)
				}
			}
		})
	}
}

func figuresOf(r WorkerReport) string {
	var s []string
	for name, v := range map[string]*float64{"loss": r.Loss, "accuracy": r.Accuracy, "AUC": r.AUC, "test accuracy": r.TestAccuracy} {
		if v != nil {
			s = append(s, fmt.Sprintf("%s %.4f", name, *v))
		}
	}
	return strings.Join(s, ", ")
}

// Synchronous training gives the same result to the last bit in every run,
// with and without loss on the way.
func TestSynchronousTrainingRepeats(t *testing.T) {
	o := defaults("fm")
	o.Data = textFile(t, dataset.TextOptions{Samples: 300, Features: 500, Words: 20, Topics: 4, Seed: 3})
	o.Epochs = 2
	first := *mustRun(t, config(t, 2, 3), o)[0].Loss
	for _, drop := range []int{0, 5} {
		c := config(t, 2, 3)
		c.Resend, c.ResendTimeout, c.Drop = drop > 0, 20*time.Millisecond, drop
		if again := *mustRun(t, c, o)[0].Loss; again != first {
			t.Errorf("loss %v, then %v with %d%% dropped", first, again, drop)
		}
	}
}

func TestOtherModelsLearn(t *testing.T) {
	o := defaults("dlrm")
	o.Data = generated(t, "clicks.tsv", func(f *os.File) error {
		_, err := dataset.WriteCriteo(f, dataset.SyntheticClicks(dataset.ClickOptions{Samples: 1500, Cardinality: 50, Seed: 2}))
		return err
	})
	o.Server.LearningRate, o.Epochs = 0.3, 8
	if r := mustRun(t, config(t, 2, 2), o)[0]; r.AUC == nil || *r.AUC < 0.7 {
		t.Errorf("recommender network: %s", figuresOf(r))
	}
}

func TestRealText(t *testing.T) {
	packed := require.Dataset(t, "rcv1-excerpt.libsvm.xz")
	require.Time(t)
	o := defaults("lr")
	o.Data = generated(t, "rcv1.libsvm", func(f *os.File) error { // unpacked once, not by each worker
		return dataset.ReadFile(t.Context(), packed, dataset.Options{}, func(rows *dataset.Rows) error {
			for i := range rows.Len() {
				if _, err := f.Write(append(rows.Text(i), '\n')); err != nil {
					return err
				}
			}
			return nil
		})
	})
	o.Batch = 64
	r := mustRun(t, config(t, 2, 8), o)[0]
	if r.Accuracy == nil || *r.Accuracy < 0.97 {
		t.Errorf("8 workers reach %s, want an accuracy of 0.97", figuresOf(r))
	}
	t.Logf("%d steps, %s", r.Steps, figuresOf(r))
}

func TestCount(t *testing.T) {
	for name, change := range map[string]func(*Options, *van.Config){
		"plain":     func(*Options, *van.Config) {},
		"assign":    func(o *Options, _ *van.Config) { o.Server.Rule = "assign" },
		"long":      func(o *Options, _ *van.Config) { o.Server.ValueLength = 7 },
		"lens":      func(o *Options, _ *van.Config) { o.Count.Lens = true },
		"wandering": func(o *Options, _ *van.Config) { o.Count.Wander, o.Async = 5, true },
		"loss": func(_ *Options, c *van.Config) {
			c.Resend, c.ResendTimeout, c.Drop = true, 20*time.Millisecond, 10
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, c := defaults("count"), config(t, 2, 3)
			o.Steps = 20
			dir := t.TempDir()
			change(&o, &c)
			reports := require.Value(runJob(t, c, nil, func(i int) Options {
				own := o
				own.AccessLog = filepath.Join(dir, fmt.Sprint(i))
				return own
			}))(t)
			checked := 0
			for _, r := range reports {
				checked += r.Checked
			}
			if checked < 100 {
				t.Errorf("%d keys checked", checked)
			}
			for i := range c.Workers {
				checkAccesses(t, filepath.Join(dir, fmt.Sprint(i)), o, c.Workers)
			}
		})
	}
}

// Workers that make their steps at different speeds agree on which is the last.
func TestCountGoesOnWhileAFileIsThere(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"plain": func(*Options) {},
		"lens":  func(o *Options) { o.Count.Lens = true },
		"long":  func(o *Options) { o.Server.ValueLength = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			o, c := defaults("count"), config(t, 2, 3)
			o.Steps = 5
			o.Count.While = filepath.Join(t.TempDir(), "while")
			require.NoError(t, os.WriteFile(o.Count.While, nil, 0o600))
			change(&o)
			reports := require.Value(runJob(t, c, func(ctx context.Context, c van.Config) error {
				v, err := van.Start(ctx, c)
				if err != nil {
					return err
				}
				st, _ := kv.NewStore(kv.StoreSettings{Rule: "add"})
				h := &handler{store: st, totals: map[string]share{}}
				if _, err := kv.NewServer(v, 0, &removing{handler: h, file: o.Count.While}); err != nil {
					return err
				}
				return live(ctx, v, nil)
			}, func(int) Options { return o }))(t)
			for i, r := range reports {
				if r.Steps < 20 || r.Steps != reports[0].Steps {
					t.Errorf("worker %d made %d steps, the first %d: want as many, 20 or more", i, r.Steps, reports[0].Steps)
				}
			}
		})
	}
}

// removing is a server that removes a file at its 60th push.
type removing struct {
	*handler
	file string
	n    int
}

func (r *removing) Push(head int32, keys []uint64, vals []float32, lens []int32) error {
	if r.n++; r.n == 60 {
		os.Remove(r.file)
	}
	return r.handler.Push(head, keys, vals, lens)
}

// checkAccesses compares a log with what count is known to do: a push and a
// pull for each key of a step, and a pull for each key whose sum it checks.
func checkAccesses(t *testing.T, path string, o Options, workers int) {
	t.Helper()
	keys, _ := dataset.ParseKeyMap(o.KeyMap)
	c, err := newCounter(o.Count, o.Seed, &keys)
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	got := make(map[uint64]kv.AccessCounts)
	head, rest, _ := strings.Cut(string(text), "\n")
	var rank int
	_, err = fmt.Sscanf(head, "# worker %d", &rank)
	require.NoError(t, err)
	for line := range strings.Lines(rest) {
		var key uint64
		var n kv.AccessCounts
		_, err := fmt.Sscan(line, &key, &n.Pushes, &n.PushBytes, &n.Pulls, &n.PullBytes)
		require.NoError(t, err)
		got[key] = n
	}
	want := make(map[uint64]kv.AccessCounts)
	each := max(1, o.Server.ValueLength)
	add := func(id int32, push bool) {
		n := want[c.keys[id]]
		size := uint64(4 * c.width(id, each))
		if push {
			n.Pushes++
			n.PushBytes += size
		} else {
			n.Pulls++
			n.PullBytes += size
		}
		want[c.keys[id]] = n
	}
	for step := range o.Steps {
		for _, id := range c.step(rank, step) {
			add(id, true)
			add(id, false)
		}
	}
	sums := require.Value(c.totals(workers, o.Steps))(t)
	for id, sum := range sums {
		if sum > 0 && id%workers == rank {
			add(int32(id), false)
		}
	}
	if len(got) != len(want) {
		t.Errorf("worker %d: %d keys, want %d", rank, len(got), len(want))
	}
	for key, n := range want {
		if got[key] != n {
			t.Fatalf("worker %d, key %d: %+v, want %+v", rank, key, got[key], n)
		}
	}
}

// forgetful is a server that loses one push in a hundred.
type forgetful struct {
	*handler
	n int
}

func (f *forgetful) Push(head int32, keys []uint64, vals []float32, lens []int32) error {
	if f.n++; f.n%100 == 50 {
		return nil
	}
	return f.handler.Push(head, keys, vals, lens)
}

func TestCountNoticesLostUpdates(t *testing.T) {
	o := defaults("count")
	o.Steps, o.Count.Batch, o.Count.Keys = 100, 4, 50
	_, err := runJob(t, config(t, 1, 1), func(ctx context.Context, c van.Config) error {
		v, err := van.Start(ctx, c)
		if err != nil {
			return err
		}
		st, _ := kv.NewStore(kv.StoreSettings{Rule: "add"})
		if _, err := kv.NewServer(v, 0, &forgetful{handler: &handler{store: st, totals: map[string]share{}}}); err != nil {
			return err
		}
		return live(ctx, v, nil)
	}, func(int) Options { return o })
	if err == nil || (!errors.Is(err, errWrongSums) && !strings.Contains(err.Error(), "this worker alone pushed")) {
		t.Errorf("a lost push ended in: %v", err)
	}
}

func TestBench(t *testing.T) {
	for _, r := range mustRun(t, config(t, 2, 2), defaults("bench")) {
		if len(r.PushSeconds) != 3 || len(r.PullSeconds) != 3 || r.Checked != 1000 {
			t.Errorf("%+v", r)
		}
	}
}

func TestOptions(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"--model":        func(o *Options) { o.Model = "svm" },
		"--data":         func(o *Options) { o.Data = "" },
		"--batch":        func(o *Options) { o.Batch = 0 },
		"--steps":        func(o *Options) { o.Steps = -1 },
		"--key-map":      func(o *Options) { o.KeyMap = "hash" },
		"--rule":         func(o *Options) { o.Server.Rule = "adam" },
		"--count-batch":  func(o *Options) { o.Model, o.Count.Batch = "count", 501 },
		"--count-skew":   func(o *Options) { o.Model, o.Count.Skew = "count", -1 },
		"--momentum":     func(o *Options) { o.Momentum = 0.9 },
		"--curve-every":  func(o *Options) { o.CurveEvery = -1 },
		"--top":          func(o *Options) { o.Top = []int{16, 0} },
		"--tensor-block": func(o *Options) { o.Block = 0 },
		"--count-while":  func(o *Options) { o.Model, o.Count.While, o.Async = "count", "x", true },
		"--count-late":   func(o *Options) { o.Model, o.Count.While, o.Count.Late = "count", "x", true },
		"count requires": func(o *Options) { o.Model, o.Server.Rule = "count", "sgd" },
	} {
		o := defaults("lr")
		o.Data = "x"
		require.NoError(t, o.Check())
		change(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", want, err)
		}
	}
}

func TestShuffleVisitsAll(t *testing.T) {
	s := newShuffle(10, 1, 2)
	var all []int32
	for range 5 {
		all = append(all, s.nextSamples(4)...)
	}
	for epoch := range 2 {
		part := slices.Clone(all[10*epoch : 10*epoch+10])
		slices.Sort(part)
		for i, v := range part {
			if int(v) != i {
				t.Fatalf("epoch %d visits %v", epoch, part)
			}
		}
	}
}

// A guided draw finds what a bisection of the whole distribution does.
func TestFindIsABisection(t *testing.T) {
	for _, o := range []CountOptions{{Keys: 1}, {Keys: 2, Skew: 1}, {Keys: 1000}, {Keys: 1000, Skew: 1.1}, {Keys: 1000, Skew: 1.1, Favourites: 37}, {Keys: 300, Skew: 40}} {
		o.Batch = 1
		keys := require.Value(dataset.ParseKeyMap("identity"))(t)
		c := require.Value(newCounter(o, 1, &keys))(t)
		r := rand.New(rand.NewPCG(1, 2))
		for i := range 20_000 {
			share := r.Float64()
			if i < 1000 { // where one part of the guide ends
				share = float64(i) / 1000
			}
			want, _ := slices.BinarySearch(c.favour[:c.among()], share*c.favour[c.among()-1])
			if got := c.find(share); got != want {
				t.Fatalf("%+v: %v is found at %d, want %d", o, share, got, want)
			}
		}
	}
}
