// Package report sends an agent's reports to the planner.
//
// Its input is a function that makes a report; its output is a gRPC stream, on which each
// report is sent only after the planner has acknowledged the one before. While the planner is
// slow or away, reports in between are skipped without loss, since each holds sums since the
// agent began. The agent is never held up.
package report

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
)

// Every is how often a report is sent.
const Every = 2 * time.Second

// lookEvery is how often urgent is polled between reports.
const lookEvery = 100 * time.Millisecond

// again is the first pause before a failed connection is tried again.
const again = time.Second

// Wanted is what the planner asks for in the next report.
type Wanted struct {
	// Light allows the agent to leave out what api.HostReport calls the heavy part.
	Light bool
	// WindowKeys bounds the keys of a job's window; 0 leaves it to the agent.
	WindowKeys int
}

// A Link is the connection of an agent to its planner. Run owns it; State may be called from
// any goroutine.
type Link struct {
	address string
	host    string
	creds   credentials.TransportCredentials
	make    func(Wanted) *api.HostReport
	urgent  func() bool
	pace    func(work func()) (pause time.Duration)
	options []grpc.DialOption
	names   func(map[string]string) // called with the planner's names of jobs; may be nil

	mu     sync.Mutex // guards the rest
	state  page.Planner
	warned bool // that the planner cannot be reached, since it last could
}

// New returns a link to the planner at address, which is connected by Run. what makes the
// content of a report; the link fills in host, incarnation, sequence and time, and owns the
// result. A report is sent early when urgent returns true, which is asked every 100 ms. Both
// are called from Run's goroutine. options are dial options besides the credentials.
func New(address, host string, creds credentials.TransportCredentials, what func(Wanted) *api.HostReport, urgent func() bool, options ...grpc.DialOption) *Link {
	l := &Link{address: address, host: host, creds: creds, make: what, urgent: urgent, options: options, state: page.Planner{Address: address}}
	l.SetEvery(Every)
	return l
}

// SetEvery replaces the interval [Every]. Call it before Run.
func (l *Link) SetEvery(every time.Duration) {
	l.Pace(func(work func()) time.Duration { work(); return every })
}

// Pace sets a function that does the work of a report, making and sending it, and returns the
// time from then to the next one. Call it before Run.
func (l *Link) Pace(pace func(work func()) (pause time.Duration)) { l.pace = pace }

// Names sets a function that is called, after each report, with the planner's names of jobs by
// their schedulers' addresses. Call it before Run.
func (l *Link) Names(settle func(map[string]string)) { l.names = settle }

// State returns a copy of the link's state, for the page and status.
func (l *Link) State() *page.Planner {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state
	return &s
}

// Run connects, reports and reconnects until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	// The incarnation tells the planner that sums have restarted from zero. It is random, since
	// a clock may have been set back since the last start.
	incarnation, sequence := rand.Uint64(), uint64(0)
	report := func(w Wanted) *api.HostReport {
		r := l.make(w)
		sequence++
		r.Host, r.Incarnation, r.Sequence, r.UnixNanos = l.host, incarnation, sequence, time.Now().UnixNano()
		return r
	}
	options := append(slices.Clone(l.options), grpc.WithTransportCredentials(l.creds))
	if err := dial.Connect(ctx, l.address, options, dial.PausePlanner(again), func(ctx context.Context, conn *grpc.ClientConn) (answered bool) {
		err := l.stream(ctx, api.NewPlannerClient(conn), report)
		l.mu.Lock()
		defer l.mu.Unlock()
		answered, l.state.Connected = l.state.Connected, false
		if err != nil {
			l.state.Error = err.Error()
		}
		// Once for each time that it goes away, and not when this agent ends.
		if ctx.Err() == nil && (answered || !l.warned) {
			l.warned = true
			slog.Warn("the planner cannot be reached; trying again until it can", "address", l.address, "error", status.Convert(err).Message())
		}
		return answered
	}); err != nil {
		return fmt.Errorf("--planner: %w", err)
	}
	return ctx.Err()
}

// stream reports over one gRPC stream until it breaks.
//
// The first report is a light one. Its answer says whether this planner asks for whole reports
// when it needs them; one that does not ask gets a whole report at once, without waiting for
// the next interval.
func (l *Link) stream(ctx context.Context, client api.PlannerClient, report func(Wanted) *api.HostReport) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Report(ctx, grpc.UseCompressor(gzip.Name))
	if err != nil {
		return err
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	wanted := Wanted{Light: true} // until the planner answers
	for {
		var next *api.HostReport
		var sent time.Time
		var err error
		every := l.pace(func() {
			next = report(wanted)
			sent = time.Now()
			err = stream.Send(next)
		})
		ticker.Reset(min(lookEvery, every))
		if err != nil {
			_, err = stream.Recv() // Send reports io.EOF only; the cause comes with Recv
			return err
		}
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		wanted = Wanted{Light: answer.GetAsks() && !answer.GetWhole(), WindowKeys: int(answer.GetWindowKeys())}
		if l.names != nil {
			names := map[string]string{}
			for _, n := range answer.GetNames() {
				names[n.GetJob()] = n.GetName()
			}
			l.names(names)
		}
		l.taken(time.Since(sent), every)
		for due := next.GetLight() && !wanted.Light; !due; due = time.Since(sent) >= every || l.urgent() {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
			}
		}
	}
}

// taken records that the planner has taken a report. Reports that came due while it took its
// time were skipped.
func (l *Link) taken(after, every time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.state.Connected {
		l.state.Connected, l.state.Since, l.state.Error, l.warned = true, time.Now(), "", false
		slog.Info("reporting to the planner", "address", l.address)
	}
	l.state.Reports++
	l.state.Skipped += uint64(after / every)
}
