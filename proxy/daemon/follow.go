// This part follows what the planner says about the values of pushes and pulls, while jobs
// run: rules for the codec, rules on sums, and trials of codecs on live traffic.
//
// Orders of the planner come in (gRPC, service Codecs of planner/api); rules go to the codec,
// and reports to the planner. While there is no planner the last rules hold.

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/codec/advice"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// followOptions configure a [follower]. All but Credentials, Dial and Log are required.
type followOptions struct {
	Planner     string                           // host:port
	Credentials credentials.TransportCredentials // nil: none
	Host        string                           // name of this host at the planner
	Dial        []grpc.DialOption                // options of the connection, besides the credentials
	// Codec gets the rules; nil: this proxy has none, and refuses them.
	Codec *values.Codec
	// Sums, where not nil, gets the rules on sums by job, and owns the map.
	Sums func(map[string][]measure.SumRule)
	// Advise tries codecs for some time, during which it blocks, and reports by job.
	Advise func(ctx context.Context, during time.Duration) (map[string]advice.Report, error)
	// Measures, where not nil, returns which measures hold for which jobs.
	Measures func() []measure.Line
	Log      *slog.Logger // nil: the default
}

// follower follows one planner. Each session has four goroutines: one receives orders, and
// trying, measuring and reporting; the first error ends all.
//
// The report is a state and not a log: it always has the version of the rules in effect, the
// last trial and the present measures. So a lost connection needs no recovery, and the newest
// report is all that the planner keeps.
type follower struct {
	opts followOptions

	mu       sync.Mutex       // guards the rest
	report   *api.CodecReport // replaced, never changed, so that it can be sent without the lock
	answered bool             // by the planner, since heard was last called
}

// newFollower returns a follower that has not started.
func newFollower(o followOptions) *follower {
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	return &follower{opts: o}
}

// again is the first pause before the planner is looked for again.
const again = 500 * time.Millisecond

// Run follows the planner until ctx ends, over one connection after another.
func (f *follower) Run(ctx context.Context) error {
	told := ""
	options := append(slices.Clone(f.opts.Dial), grpc.WithTransportCredentials(f.opts.Credentials),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}))
	return dial.Connect(ctx, f.opts.Planner, options, dial.PausePlanner(again), func(ctx context.Context, conn *grpc.ClientConn) bool {
		err := f.session(ctx, api.NewCodecsClient(conn))
		if text := status.Convert(err).Message(); ctx.Err() == nil && text != told {
			told = text
			f.opts.Log.Warn("planner unreachable; keeping the current codec rules", "planner", f.opts.Planner, "error", err)
		}
		return f.heard()
	})
}

// session follows the planner until it goes away. It begins with an empty report: what an
// earlier planner was told means nothing to this one.
func (f *follower) session(ctx context.Context, client api.CodecsClient) error {
	group, ctx := errgroup.WithContext(ctx)
	stream, err := client.Follow(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.report = &api.CodecReport{Host: f.opts.Host} // numbers are the planner's, which may be another
	f.mu.Unlock()
	// gRPC reports why sending failed by Recv.
	if err := stream.Send(f.report); err != nil {
		_, err = stream.Recv()
		return err
	}
	// Orders are received while a trial runs: rules must not wait for it.
	trials := make(chan *api.CodecTrial, 1)
	news := make(chan struct{}, 1)
	group.Go(func() error { return f.trying(ctx, trials, news) })
	// Only this goroutine sends on the stream; the others wake it.
	group.Go(func() error { return f.reporting(ctx, stream, news) })
	group.Go(func() error { return f.measuring(ctx, news) })
	group.Go(func() error {
		for {
			order, err := stream.Recv()
			if err != nil {
				return err
			}
			f.mu.Lock()
			// Whatever it sends: after a planner that answered, the next pause is a first one.
			f.answered = true
			f.mu.Unlock()
			if order.GetRules() != nil {
				f.applyRules(order.GetRules())
				wake(news)
			}
			if order.GetTrial() != nil {
				select {
				case trials <- order.GetTrial():
				default: // one is running and one waits; the planner asks again
				}
			}
		}
	})
	return group.Wait()
}

// heard reports whether the planner has sent anything since the last call.
func (f *follower) heard() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	heard := f.answered
	f.answered = false
	return heard
}

// wake wakes whoever receives from c.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// change replaces the report by a copy that by has changed.
func (f *follower) change(by func(r *api.CodecReport)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &api.CodecReport{
		Host: f.opts.Host, Version: f.report.GetVersion(), Refused: f.report.GetRefused(),
		Trial: f.report.GetTrial(), Advice: f.report.GetAdvice(), Untried: f.report.GetUntried(),
		Measures: f.report.GetMeasures(),
	}
	by(r)
	f.report = r
}

// measureEvery is the period at which measures are compared with what was reported.
const measureEvery = 2 * time.Second

// heldEvery is the minimum distance of reports that differ only in what thresholds hold back.
const heldEvery = 10 * time.Second

// maxMeasures bounds the lines that are reported.
const maxMeasures = 1024

// measuring reports the measures when they have changed.
func (f *follower) measuring(ctx context.Context, news chan struct{}) error {
	if f.opts.Measures == nil {
		return nil
	}
	look := time.NewTicker(measureEvery)
	defer look.Stop()
	var told []measure.Line
	var at time.Time
	for {
		lines := f.opts.Measures()
		lines = lines[:min(len(lines), maxMeasures)]
		// Most looks find nothing new; the planner need not hear of them.
		if now := time.Now(); isNews(lines, told, now.Sub(at) >= heldEvery) {
			told, at = lines, now
			f.change(func(r *api.CodecReport) { r.Measures = api.MeasuresTo(lines) })
			wake(news)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
	}
}

// isNews reports whether lines differ from those that were told: in how much is held back, which
// changes all the time, only if that is due.
func isNews(lines, told []measure.Line, heldIsDue bool) bool {
	if heldIsDue {
		return !reflect.DeepEqual(lines, told)
	}
	return !slices.EqualFunc(lines, told, func(a, b measure.Line) bool {
		if (a.HeldValues == 0) != (b.HeldValues == 0) {
			return false
		}
		a.HeldValues, a.HeldSquares, a.StepSquares = b.HeldValues, b.HeldSquares, b.StepSquares
		return reflect.DeepEqual(a, b)
	})
}

// reporting sends the report whenever it has changed. Several changes may go as one report.
func (f *follower) reporting(ctx context.Context, stream grpc.BidiStreamingClient[api.CodecReport, api.CodecOrder], news chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-news:
		}
		f.mu.Lock()
		r := f.report
		f.mu.Unlock()
		if err := stream.Send(r); err != nil {
			return err
		}
	}
}

// applyRules takes over rules: all of them, or none where one is wrong, which is reported
// with the reason.
func (f *follower) applyRules(all *api.CodecRules) {
	// Both kinds are parsed before either takes effect.
	rules, err := parse(all)
	onSums, bad := parseSums(all)
	err = errors.Join(err, bad)
	switch {
	case err != nil:
	// The codec checks that rules go together, across jobs.
	case f.opts.Codec != nil:
		err = f.opts.Codec.SetPlanned(rules)
	case len(rules) > 0:
		err = fmt.Errorf("this proxy has no codec for values; see --codec")
	}
	if err != nil {
		f.opts.Log.Warn("the planner's codec rules were rejected", "version", all.GetVersion(), "error", err)
		text := err.Error()
		f.change(func(r *api.CodecReport) { r.Refused = text[:min(len(text), 1024)] })
		return
	}
	if f.opts.Sums != nil {
		f.opts.Sums(onSums)
	}
	f.opts.Log.Info("codec rules updated by the planner", "version", all.GetVersion(), "for_values", len(rules), "jobs_with_rules_on_sums", len(onSums))
	f.change(func(r *api.CodecReport) { r.Version, r.Refused = all.GetVersion(), "" })
}

// parse returns the rules of all jobs, in the planner's order, each for its own job alone.
func parse(all *api.CodecRules) ([]values.Rule, error) {
	var rules []values.Rule
	for _, j := range all.GetJobs() {
		own, err := values.ParseRules(strings.NewReader(j.GetRules()))
		if err != nil {
			return nil, fmt.Errorf("job %s: %w", j.GetJob(), err)
		}
		for i := range own {
			// A rule for one job must not reach others, whatever its text says.
			own[i].Job = j.GetJob()
		}
		rules = append(rules, own...)
	}
	return rules, nil
}

// parseSums returns the rules on sums, by job.
func parseSums(all *api.CodecRules) (map[string][]measure.SumRule, error) {
	rules := map[string][]measure.SumRule{}
	for _, j := range all.GetSums() {
		own, err := measure.ParseSumRules(j.GetRules())
		if err != nil {
			return nil, fmt.Errorf("sums of job %s: %w", j.GetJob(), err)
		}
		rules[j.GetJob()] = own
	}
	return rules, nil
}

// trying makes the trials, one after another.
func (f *follower) trying(ctx context.Context, trials <-chan *api.CodecTrial, news chan struct{}) error {
	for {
		var t *api.CodecTrial
		select {
		case <-ctx.Done():
			return ctx.Err()
		case t = <-trials:
		}
		// The planner bounds the time of a trial.
		during := time.Duration(t.GetSeconds()) * time.Second
		// It blocks for the whole trial. Orders that come meanwhile wait in trials.
		reports, err := f.opts.Advise(ctx, during)
		f.change(func(r *api.CodecReport) {
			r.Trial, r.Advice, r.Untried = t.GetNumber(), nil, ""
			if err != nil {
				r.Untried = err.Error()
			}
			for _, job := range slices.Sorted(maps.Keys(reports)) {
				r.Advice = append(r.Advice, adviceOf(job, during, reports[job]))
			}
		})
		wake(news)
	}
}

// adviceOf converts a report to sums, which the planner can add up over hosts.
func adviceOf(job string, during time.Duration, r advice.Report) *api.CodecAdvice {
	a := &api.CodecAdvice{
		Job: job, Seconds: during.Seconds(), Pushes: uint64(r.Pushes), PushBytes: uint64(r.PushBytes), PullBytes: uint64(r.PullBytes),
		Missed: uint64(r.Missed), StepSquares: r.StepSquares, CharValues: r.CharValues, UntypedBytes: uint64(r.UntypedBytes),
	}
	for _, c := range r.Codecs {
		a.Candidates = append(a.Candidates, &api.CodecCandidate{
			Codec: c.Codec, PushBytes: uint64(c.Pushes*float64(r.PushBytes) + 0.5), PullBytes: uint64(c.Pulls*float64(r.PullBytes) + 0.5),
			WaitingSquares: c.Waits * c.Waits * r.StepSquares,
		})
	}
	return a
}
