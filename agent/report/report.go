// Package report sends an agent's reports to the planner.
//
// In comes a function that makes a report of what the agent knows; out go
// reports over one gRPC stream, each sent only after the planner has taken in
// the one before. While the planner is slow or away, the reports in between
// are skipped: each holds sums since the agent began. The agent goes on
// unharmed.
package report

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/api"
)

// Every is how often a report is sent.
const Every = 2 * time.Second

// lookEvery is how often is looked whether something is urgent.
const lookEvery = 100 * time.Millisecond

// again is how long to wait, the first time, before the planner is tried once more.
const again = time.Second

// Wanted is what the planner wants of the next report.
type Wanted struct {
	// Light: all that api.HostReport says of light ones may be left out.
	Light bool
	// WindowKeys is of how many keys a job's window may be; 0: as many as the agent
	// likes.
	WindowKeys int
}

// Link is the way to a planner.
type Link struct {
	address string
	host    string
	creds   credentials.TransportCredentials
	make    func(Wanted) *api.HostReport
	urgent  func() bool
	every   time.Duration
	options []grpc.DialOption
	names   func(map[string]string) // nil: nobody wants to know

	mu    sync.Mutex // guards state
	state page.Planner
}

// New returns a link to the planner at the address. What is reported comes from
// the function what, which is called before each report; the link adds whose it
// is. A report is sent before the next one is due when urgent says so. Options
// are those of the connection besides the credentials.
func New(address, host string, creds credentials.TransportCredentials, what func(Wanted) *api.HostReport, urgent func() bool, options ...grpc.DialOption) *Link {
	return &Link{address: address, host: host, creds: creds, make: what, urgent: urgent, every: Every, options: options, state: page.Planner{Address: address}}
}

// SetEvery has reports be sent so often, instead of every [Every]. It is called
// before Run.
func (l *Link) SetEvery(every time.Duration) { l.every = every }

// Names has settle called with what the planner calls jobs, by their schedulers'
// addresses, whenever it has taken a report. Call it before Run.
func (l *Link) Names(settle func(map[string]string)) { l.names = settle }

// State returns how the link does.
func (l *Link) State() *page.Planner {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state
	return &s
}

// Run reports until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	// At random, not by the clock: that may have been set back since the last start.
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
		return answered
	}); err != nil {
		return fmt.Errorf("--planner: %w", err)
	}
	return ctx.Err()
}

// stream reports over one stream until it breaks.
func (l *Link) stream(ctx context.Context, client api.PlannerClient, report func(Wanted) *api.HostReport) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Report(ctx, grpc.UseCompressor(gzip.Name))
	if err != nil {
		return err
	}
	ticker := time.NewTicker(min(lookEvery, l.every))
	defer ticker.Stop()
	wanted := Wanted{Light: true} // until the planner says that it does not ask
	for {
		next := report(wanted)
		sent := time.Now()
		if err := stream.Send(next); err != nil {
			_, err = stream.Recv() // says why
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
		l.taken(time.Since(sent))
		for due := next.GetLight() && !wanted.Light; !due; due = time.Since(sent) >= l.every || l.urgent() {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
			}
		}
	}
}

func (l *Link) taken(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.state.Connected {
		l.state.Connected, l.state.Since, l.state.Error = true, time.Now(), ""
	}
	l.state.Reports++
	l.state.Skipped += uint64(after / l.every)
}
