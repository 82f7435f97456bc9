package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/dataset"
)

// WorkerReport is what a worker reports at its end. Loss, accuracy and AUC are over
// the training samples of all workers if the servers are psjob's, else over this
// worker's. Pointers are nil for figures that do not exist.
type WorkerReport struct {
	Role           string         `json:"role"`
	Rank           int            `json:"rank"`
	Model          string         `json:"model"`
	Samples        int            `json:"samples,omitempty"` // of this worker
	Steps          int            `json:"steps"`
	Seconds        float64        `json:"seconds"` // of training, without loading and scoring
	StepsPerSecond float64        `json:"steps_per_second"`
	LongestStep    float64        `json:"longest_step,omitempty"` // seconds, of count and of training
	Curve          []Mark         `json:"curve,omitempty"`        // of this worker's batches, see Options.CurveEvery
	Loss           *float64       `json:"loss,omitempty"`
	Accuracy       *float64       `json:"accuracy,omitempty"`
	AUC            *float64       `json:"auc,omitempty"`
	AllWorkers     bool           `json:"all_workers,omitempty"` // the three are over all workers' samples
	TestLoss       *float64       `json:"test_loss,omitempty"`
	TestAccuracy   *float64       `json:"test_accuracy,omitempty"`
	TestAUC        *float64       `json:"test_auc,omitempty"`
	Checked        int            `json:"checked,omitempty"`  // keys whose sums were compared
	CutRows        int            `json:"cut_rows,omitempty"` // rows that came without their smallest values
	Keys           int            `json:"keys"`               // different ones that were accessed
	Pushes         int64          `json:"pushes"`             // of keys
	Pulls          int64          `json:"pulls"`
	PushBytes      int64          `json:"push_bytes"` // of values
	PullBytes      int64          `json:"pull_bytes"`
	PushSeconds    []float64      `json:"push_seconds,omitempty"` // of each round of a bench
	PullSeconds    []float64      `json:"pull_seconds,omitempty"`
	Statistics     van.Statistics `json:"statistics"`
}

// Mark is a point of a worker's progress.
type Mark struct {
	Step    int     `json:"step"`    // steps made
	Seconds float64 `json:"seconds"` // since the first began
	Loss    float64 `json:"loss"`    // mean over the batches since the previous mark, each scored before its own update
}

// worker is the state of one worker process. One goroutine runs it; with the model
// mix, each mixer has a goroutine besides, which owns its mixer and only reads the
// worker.
//
// log is nil if no accesses are recorded. report is written by the worker's own
// goroutine and returned by [Work].
type worker struct {
	Options
	kv     *kv.Worker
	van    *van.Van
	log    *kv.AccessLog
	logger *slog.Logger
	keys   dataset.KeyMap
	mixers []*mixer
	report WorkerReport
}

// Work runs a worker from its registration to the end of the job, and blocks for that
// long. With an error it still returns the report as far as it was filled in, so that
// the caller can print how far the worker got.
//
// The order is that of every node: start the van, create the customers, wait at the
// barrier of all nodes, work, wait at the last barrier, stop (see live).
func Work(ctx context.Context, c van.Config, o Options) (WorkerReport, error) {
	if err := o.Check(); err != nil {
		return WorkerReport{}, err
	}
	o = o.withDefaults()
	v, err := van.Start(ctx, c)
	if err != nil {
		return WorkerReport{}, err
	}
	w := &worker{Options: o, van: v, logger: v.Config().Logger, log: new(kv.AccessLog)}
	w.report = WorkerReport{Role: "worker", Rank: v.Rank(), Model: o.Model}
	if o.Model == "bench" && o.AccessLog == "" {
		w.log = nil // keeping it would be measured as well
	}
	// Right after the start: a message for a customer that does not exist yet blocks
	// the reader of its connection, and all messages behind it.
	w.kv, err = kv.NewWorker(v, 0, 0, w.log)
	if err != nil {
		return w.report, errors.Join(err, v.Stop(ctx))
	}
	if o.Model == "mix" {
		if err := w.startMix(); err != nil {
			return w.report, errors.Join(err, v.Stop(ctx))
		}
	}
	err = live(ctx, v, w.work)
	w.report.Statistics = v.Statistics()
	return w.report, err
}

// work runs the chosen model, completes the report and writes the access log. It runs
// between the job's two barriers, so that all nodes have their ids and none stops
// while another still needs it.
func (w *worker) work(ctx context.Context) (err error) {
	if w.keys, err = dataset.ParseKeyMap(w.KeyMap); err != nil {
		return err
	}
	select {
	case <-time.After(w.StartAfter):
	case <-ctx.Done():
		return ctx.Err()
	}
	switch w.Model {
	case "count":
		err = w.checkCounts(ctx)
	case "mix":
		err = w.mix(ctx)
	case "rows":
		err = w.rows(ctx)
	case "dense":
		err = w.dense(ctx)
	case "pingpong":
		err = w.pingPong(ctx)
	case "bench":
		err = w.bench(ctx)
	default:
		err = w.train(ctx)
	}
	if err != nil {
		return err
	}
	w.sumUp()
	if w.AccessLog == "" {
		return nil
	}
	return w.log.WriteFile(w.AccessLog, w.van.Rank())
}

// sumUp adds up the access log for the report. Without a log the report has zeros.
func (w *worker) sumUp() {
	if w.log == nil {
		return
	}
	r := &w.report
	r.Keys = w.log.Len()
	for _, c := range w.log.All() {
		r.Pushes += int64(c.Pushes)
		r.Pulls += int64(c.Pulls)
		r.PushBytes += int64(c.PushBytes)
		r.PullBytes += int64(c.PullBytes)
	}
}

// foreignDelay is how long servers that are not psjob's get to become ready.
const foreignDelay = 300 * time.Millisecond

// configure has the first worker configure the servers, and waits until all workers
// know that they are: no worker may push before, or a server would apply the push by
// the rule that it began with. One that takes another's place finds them configured.
func (w *worker) configure(ctx context.Context, width int) error {
	if w.van.Recovered() {
		return nil
	}
	if w.van.Rank() == 0 {
		body, err := json.Marshal(w.settings(width))
		if err != nil {
			return err
		}
		answers, err := w.kv.Command(ctx, headConfigure, body, van.Servers)
		if err != nil {
			return fmt.Errorf("configuring the servers: %w", err)
		}
		if slices.ContainsFunc(answers, func(c kv.Command) bool { return string(c.Body) != configured }) {
			// PS-lite's servers end if a push comes before they have set their
			// handler, which they do a moment after they can answer.
			time.Sleep(foreignDelay)
		}
	}
	return w.van.Barrier(ctx, van.Workers)
}

// total sums s over all workers at the first server: each adds its part, a barrier
// makes sure that all have, and each asks for the sum. Workers have no connections to
// each other, so a server is the only place where they can exchange a number.
//
// ok is false if that server does not sum, as one of PS-lite's own does not, which an
// answer without the right number of workers shows.
func (w *worker) total(ctx context.Context, s share) (total share, ok bool, err error) {
	first := int(pslite.ServerID(0))
	body, err := json.Marshal(s)
	if err != nil {
		return s, false, err
	}
	if _, err := w.kv.Command(ctx, headTally, body, first); err != nil {
		return s, false, err
	}
	// All have added before anyone asks.
	if err := w.van.Barrier(ctx, van.Workers); err != nil {
		return s, false, err
	}
	// The answer may come from a server of another program, which can say anything.
	answers, err := w.kv.Command(ctx, headTotal, []byte(s.Name), first)
	if err != nil {
		return s, false, err
	}
	if len(answers) != 1 || json.Unmarshal(answers[0].Body, &total) != nil || total.Count != w.van.Config().Workers {
		return s, false, nil
	}
	return total, true, nil
}

// load reads the worker's samples and makes the model. width is how many values the
// model's keys have unless a request says otherwise.
func (w *worker) load(ctx context.Context, data, labels string, part model.Share) (m model.Model, width int, err error) {
	switch w.Model {
	case "lr", "fm":
		set, err := model.LoadSparse(ctx, data, part, w.keys, w.UnitRows)
		if err != nil {
			return nil, 0, err
		}
		if w.Model == "lr" {
			return model.NewLinear(set), 1, nil
		}
		return model.NewFactor(set, w.Factors, w.Seed), w.Factors + 1, nil
	case "dlrm":
		set, err := model.LoadClicks(ctx, data, part, w.keys, w.Buckets)
		if err != nil {
			return nil, 0, err
		}
		m, err := model.NewRecommend(set, model.RecommendShape{Embedding: w.Embedding, Bottom: w.Bottom, Top: w.Top}, w.Block, w.Seed, w.keys.Key)
		return m, w.Embedding, err
	}
	// As MNIST's files are called.
	if labels == "" {
		labels = strings.Replace(data, "images-idx3", "labels-idx1", 1)
	}
	set, err := model.LoadImages(data, labels, part)
	if err != nil {
		return nil, 0, err
	}
	m, err = model.NewImage(set, []int{w.Hidden}, w.Block, w.Seed, w.keys.Key)
	return m, 1, err
}

// score predicts all samples of a model with the parameters of a step, in chunks that
// bound the memory of the pulled parameters and of the nets' layers. The last chunk
// may be shorter; the tally adds samples, not chunks, so that it does not weigh more.
func (w *worker) score(ctx context.Context, m model.Model, step int32) (model.Tally, error) {
	const chunk = 4096
	var tally model.Tally
	for from := 0; from < m.Samples(); from += chunk {
		var batch []int32
		for i := from; i < min(from+chunk, m.Samples()); i++ {
			batch = append(batch, int32(i))
		}
		params, err := w.pull(ctx, m.Groups(batch), step, nil)
		if err != nil {
			return tally, err
		}
		m.Score(batch, params, &tally)
	}
	return tally, nil
}

// since returns the seconds since began.
func since(began time.Time) float64 { return time.Since(began).Seconds() }
