package planner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/grpctest"
	"github.com/psidecar/psidecar/test/require"
)

// serve serves s over gRPC in memory.
func serve(t *testing.T, s *Codecs) api.CodecsClient {
	t.Helper()
	return api.NewCodecsClient(grpctest.Serve(t, func(server *grpc.Server) { api.RegisterCodecsServer(server, s) }))
}

func newService(t *testing.T, kept store.Store) *Codecs {
	t.Helper()
	s := require.Value(NewCodecs(t.Context(), kept))(t)
	return s
}

// proxy follows as a host.
func proxy(t *testing.T, c api.CodecsClient, host string) (grpc.BidiStreamingClient[api.CodecReport, api.CodecOrder], context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := c.Follow(ctx)
	if err == nil {
		err = stream.Send(&api.CodecReport{Host: host})
	}
	require.NoError(t, err)
	return stream, cancel
}

func receive(t *testing.T, stream grpc.BidiStreamingClient[api.CodecReport, api.CodecOrder]) *api.CodecOrder {
	t.Helper()
	o := require.Value(stream.Recv())(t)
	return o
}

// await asks until the description is as wanted.
func await(t *testing.T, s *Codecs, what string, ok func(*api.CodecsDescription) bool) *api.CodecsDescription {
	t.Helper()
	var d *api.CodecsDescription
	require.Await(t, what, func() error {
		if d = require.Value(s.Describe(t.Context(), &api.DescribeRulesRequest{}))(t); !ok(d) {
			return fmt.Errorf("%v", d)
		}
		return nil
	})
	return d
}

const on, off = `[{"threshold":0.99}]`, `[{}]`

// Rules reach present followers and later ones, and outlive the planner; jobs
// without any have none.
func TestRulesReachFollowers(t *testing.T) {
	kept := &store.Memory{}
	s := newService(t, kept)
	c := serve(t, s)
	early, _ := proxy(t, c, "host-0")
	first := receive(t, early).GetRules()
	if len(first.GetJobs()) != 0 || first.GetVersion() == 0 {
		t.Fatalf("before there are rules: %v", first)
	}
	set := func(job, rules string) uint64 {
		t.Helper()
		r := require.Value(c.Set(t.Context(), &api.JobRules{Job: job, Rules: rules}))(t)
		return r.GetVersion()
	}
	version := set("a:1", on)
	if got := receive(t, early).GetRules(); got.GetVersion() != version || len(got.GetJobs()) != 1 || got.GetJobs()[0].GetRules() != on {
		t.Fatalf("after one was set: %v", got)
	}
	require.NoError(t, early.Send(&api.CodecReport{Host: "host-0", Version: version}))
	await(t, s, "the report", func(d *api.CodecsDescription) bool { return d.GetFollowers()[0].GetVersion() == version })
	set("b:1", off)
	receive(t, early)
	set("a:1", "")
	late, leave := proxy(t, c, "host-1")
	for _, stream := range []grpc.BidiStreamingClient[api.CodecReport, api.CodecOrder]{early, late} {
		if got := receive(t, stream).GetRules().GetJobs(); len(got) != 1 || got[0].GetJob() != "b:1" || got[0].GetRules() != off {
			t.Fatalf("after a's were dropped: %v", got)
		}
	}
	leave()
	await(t, s, "the end of host-1", func(d *api.CodecsDescription) bool { return !d.GetFollowers()[1].GetFollowing() })
	again := newService(t, kept)
	d, err := again.Describe(t.Context(), &api.DescribeRulesRequest{Job: "b:1"})
	if err != nil || len(d.GetRules().GetJobs()) != 1 || d.GetRules().GetJobs()[0].GetRules() != off {
		t.Errorf("after a restart: %v, %v", d, err)
	}
}

func TestBadRulesAreRefused(t *testing.T) {
	s := newService(t, &store.Memory{})
	for name, r := range map[string]*api.JobRules{
		"no job": {Rules: on}, "no list": {Job: "a:1", Rules: `{"threshold":0.99}`}, "empty list": {Job: "a:1", Rules: `[]`},
		"too large": {Job: "a:1", Rules: `["` + strings.Repeat("x", MaxCodecRules) + `"]`}, "a long name": {Job: strings.Repeat("a", 300), Rules: on},
	} {
		if _, err := s.Set(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of two changes of the same rules the second is refused, whichever planner has the
// store then; without comparing, as older commands, all are made.
func TestChangesOfOtherRulesAreRefused(t *testing.T) {
	kept := &store.Memory{}
	s := newService(t, kept)
	const sums, other = `[{"form":"host"}]`, `[{"form":"none"}]`
	for name, kind := range map[string]struct {
		set       func(*Codecs, *api.JobRules) error
		one, more string
	}{
		"values": {func(s *Codecs, r *api.JobRules) error { _, err := s.Set(t.Context(), r); return err }, on, off},
		"sums":   {func(s *Codecs, r *api.JobRules) error { _, err := s.SetSums(t.Context(), r); return err }, sums, other},
	} {
		for _, step := range []struct {
			what           string
			before, rules  string
			compare, fails bool
		}{
			{"the first", "", kind.one, true, false},
			{"one of none", "", kind.more, true, true},
			{"one of what there is", kind.one, kind.more, true, false},
			{"one of what there was", kind.one, "", true, true},
			{"an older command's", "", kind.one, false, false},
			{"a removal", kind.one, "", true, false},
			{"a second removal", kind.one, "", true, true},
		} {
			err := kind.set(s, &api.JobRules{Job: "a:1", Rules: step.rules, Compare: step.compare, Before: step.before})
			if step.fails != (status.Code(err) == codes.Aborted) || !step.fails && err != nil {
				t.Errorf("%s, %s: %v", name, step.what, err)
			}
			s = newService(t, kept)
		}
	}
}

// failingStore is a store that cannot write.
type failingStore struct{ store.Memory }

func (*failingStore) Write(context.Context, []store.Entry) error { return store.ErrUnavailable }

// What the store did not take nobody hears of.
func TestRulesAreStoredFirst(t *testing.T) {
	s := newService(t, &failingStore{})
	if _, err := s.Set(t.Context(), &api.JobRules{Job: "a:1", Rules: on}); status.Code(err) != codes.Unavailable {
		t.Errorf("set without a store: %v", err)
	}
	if d, _ := s.Describe(t.Context(), &api.DescribeRulesRequest{}); len(d.GetRules().GetJobs()) != 0 {
		t.Errorf("and yet there are rules: %v", d)
	}
}

// A trial reaches all, and what they say of a job is added up; older advice does
// not count.
func TestTrialsAreAddedUp(t *testing.T) {
	s := newService(t, &store.Memory{})
	c := serve(t, s)
	if _, err := c.Try(t.Context(), &api.TryCodecs{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a trial by nobody: %v", err)
	}
	advice := func(codec string, n uint64) []*api.CodecAdvice {
		return []*api.CodecAdvice{{Job: "a:1", Seconds: 10, Pushes: n, PushBytes: 100 * n, PullBytes: 10 * n, StepSquares: float64(n),
			Candidates: []*api.CodecCandidate{{Codec: codec, PushBytes: n, PullBytes: n, WaitingSquares: 2 * float64(n)}}}}
	}
	streams := map[string]grpc.BidiStreamingClient[api.CodecReport, api.CodecOrder]{}
	for _, host := range []string{"host-0", "host-1", "host-2"} {
		streams[host], _ = proxy(t, c, host)
		receive(t, streams[host])
	}
	trial, err := c.Try(t.Context(), &api.TryCodecs{})
	if err != nil || trial.GetSeconds() != 10 {
		t.Fatalf("%v, %v", trial, err)
	}
	if _, err := c.Try(t.Context(), &api.TryCodecs{Seconds: 5}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second trial meanwhile: %v", err)
	}
	for host, r := range map[string]*api.CodecReport{
		"host-0": {Trial: trial.GetNumber(), Advice: advice("threshold", 1)},
		"host-1": {Trial: trial.GetNumber(), Advice: advice("threshold", 2)},
		"host-2": {Trial: trial.GetNumber() + 7, Advice: advice("threshold", 100)},
	} {
		if got := receive(t, streams[host]).GetTrial(); got.GetNumber() != trial.GetNumber() {
			t.Errorf("%s is told %v", host, got)
		}
		r.Host = host
		require.NoError(t, streams[host].Send(r))
	}
	d := await(t, s, "the advice", func(d *api.CodecsDescription) bool {
		return len(d.GetAdvice()) == 1 && d.GetAdvice()[0].GetHosts() == 2 && d.GetFollowers()[2].GetTrial() != 0
	})
	a := d.GetAdvice()[0]
	if a.GetPushBytes() != 300 || a.GetStepSquares() != 3 || len(a.GetCandidates()) != 1 || a.GetCandidates()[0].GetWaitingSquares() != 6 {
		t.Errorf("the sum is %v", a)
	}
}

// A trial has a number that none of a planner before had, whose caller may still wait for
// it.
func TestTrialsOfTwoPlannersDiffer(t *testing.T) {
	kept := &store.Memory{}
	began := time.Unix(1_000_000_000, 0)
	var last uint64
	for i := range 2 {
		s := newService(t, kept)
		s.now = func() time.Time { return began.Add(time.Duration(i) * time.Second) }
		c := serve(t, s)
		stream, _ := proxy(t, c, "host-0")
		receive(t, stream)
		trial := require.Value(c.Try(t.Context(), &api.TryCodecs{Seconds: 1}))(t)
		if trial.GetNumber() <= last {
			t.Errorf("planner %d has trial %d, the one before had %d", i, trial.GetNumber(), last)
		}
		last = trial.GetNumber()
	}
}

// What exceeds the limits ends the stream.
func TestReportsAreBounded(t *testing.T) {
	c := serve(t, newService(t, &store.Memory{}))
	for name, r := range map[string]*api.CodecReport{
		"another host": {Host: "host-9"}, "too much advice": {Host: "host-0", Advice: slices.Repeat([]*api.CodecAdvice{{}}, MaxAdvice+1)},
		"too many codecs": {Host: "host-0", Advice: []*api.CodecAdvice{{Candidates: slices.Repeat([]*api.CodecCandidate{{}}, MaxCandidates+1)}}},
	} {
		stream, _ := proxy(t, c, "host-0")
		receive(t, stream)
		require.NoError(t, stream.Send(r))
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The reports of all proxies together have a bound.
func TestKeptCodecReportsHaveABound(t *testing.T) {
	s := newService(t, &store.Memory{})
	s.Memory = 64 << 10
	big := func(host string) *api.CodecReport {
		return &api.CodecReport{Host: host, Refused: strings.Repeat("x", 4096)}
	}
	kept := 0
	for i := range 100 {
		if s.addFollower(&follower{}, big(string(rune('a'+i)))) == nil {
			kept++
		}
	}
	if most := s.Memory / 4096; kept == 0 || kept > most || s.memory > s.Memory {
		t.Errorf("%d reports of 4 KiB in %d bytes are kept, want at most %d in %d", kept, s.memory, most, s.Memory)
	}
	f := &follower{}
	for range 100 { // the report of one host replaces the one before
		require.NoError(t, s.addFollower(f, big("a")))
		require.NoError(t, s.keepReport(f, "a", &api.CodecReport{Host: "a"}))
	}
}
