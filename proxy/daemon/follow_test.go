package daemon

import (
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/proxy/codec/advice"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/require"
)

// servePlanner serves a planner's codecs at an address until stop is called.
func servePlanner(t *testing.T, address string) (s *planner.Codecs, at string, stop func()) {
	t.Helper()
	s = require.Value(planner.NewCodecs(t.Context(), &store.Memory{}))(t)
	l := require.Value(net.Listen("tcp", address))(t)
	server := grpc.NewServer()
	api.RegisterCodecsServer(server, s)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	return s, l.Addr().String(), func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func set(t *testing.T, s *planner.Codecs, job, rules string) {
	t.Helper()
	require.Value(s.Set(t.Context(), &api.JobRules{Job: job, Rules: rules}))(t)
}

// The planner's rules come before local ones, each for its own job; bad ones are
// refused whole, and the last good ones hold, also when the planner goes away and
// until another one says otherwise.
func TestRulesAreTakenUp(t *testing.T) {
	s, at, stop := servePlanner(t, "127.0.0.1:0")
	local := values.Rule{Quantize: 8}
	codec := require.Value(values.New(values.Options{Compact: compact.DefaultLimits, Rules: []values.Rule{local}}))(t)
	f := newFollower(followOptions{Planner: at, Host: "host-0", Codec: codec, Advise: func(context.Context, time.Duration) (map[string]advice.Report, error) {
		return map[string]advice.Report{"a:1": {PushBytes: 1000, PullBytes: 10, Pushes: 4, StepSquares: 9,
			Codecs: []advice.Row{{Codec: "threshold 0.99", Pushes: 0.25, Pulls: 0.5, Waits: 2}}}}, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	rules := func() (jobs []string) {
		for _, r := range codec.Rules() {
			jobs = append(jobs, r.Job)
		}
		return jobs
	}
	is := func(want string) func() bool { return func() bool { return strings.Join(rules(), " ") == want } }
	set(t, s, "b:1", `[{"job":"x:1","unchanged":true}]`)
	set(t, s, "a:1", `[{"threshold":0.99},{"slim":{"alpha":0.3,"epsilon":0.1}}]`)
	require.Eventually(t, "the planner's rules", is("a:1 a:1 b:1 "))
	require.NoError(t, codec.SetRules(nil))
	if !is("a:1 a:1 b:1")() {
		t.Errorf("without local ones: %q", rules())
	}
	set(t, s, "c:1", `[{"threshold":7}]`)
	describe := func() *api.CodecsDescription {
		d := require.Value(s.Describe(t.Context(), &api.DescribeRulesRequest{}))(t)
		return d
	}
	require.Eventually(t, "the refusal", func() bool { return strings.Contains(describe().GetFollowers()[0].GetRefused(), "job c:1: ") })
	if !is("a:1 a:1 b:1")() {
		t.Errorf("after bad ones: %q", rules())
	}
	set(t, s, "c:1", "")
	require.Eventually(t, "the end of the refusal", func() bool { return describe().GetFollowers()[0].GetRefused() == "" })

	require.Value(s.Try(t.Context(), &api.TryCodecs{Seconds: 1}))(t)
	require.Eventually(t, "advice", func() bool { return len(describe().GetAdvice()) == 1 })
	a := describe().GetAdvice()[0]
	if c := a.GetCandidates()[0]; a.GetPushBytes() != 1000 || c.GetPushBytes() != 250 || c.GetPullBytes() != 5 || c.GetWaitingSquares() != 36 {
		t.Errorf("advice is %v", a)
	}

	stop()
	if !is("a:1 a:1 b:1")() {
		t.Errorf("without a planner: %q", rules())
	}
	_, _, stop = servePlanner(t, at)
	require.Eventually(t, "that the next planner has none", is(""))
	cancel()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A proxy that has no codec for values says so.
func TestWithoutCodec(t *testing.T) {
	s, at, stop := servePlanner(t, "127.0.0.1:0")
	f := newFollower(followOptions{Planner: at, Host: "host-0", Advise: func(context.Context, time.Duration) (map[string]advice.Report, error) {
		return nil, errors.New("no codec for values")
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	follower := func() *api.CodecFollower {
		d, err := s.Describe(t.Context(), &api.DescribeRulesRequest{})
		if err != nil || len(d.GetFollowers()) == 0 {
			return nil
		}
		return d.GetFollowers()[0]
	}
	require.Eventually(t, "the follower", func() bool { return follower().GetVersion() > 0 })
	set(t, s, "a:1", `[{"threshold":0.99}]`)
	require.Eventually(t, "the refusal", func() bool { return strings.Contains(follower().GetRefused(), "--codec") })
	require.Value(s.Try(t.Context(), &api.TryCodecs{Seconds: 1}))(t)
	require.Eventually(t, "why it was not tried", func() bool { return follower().GetUntried() == "no codec for values" })
	cancel()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Rules on sums are taken up beside those for values.
func TestRulesOnSumsAreTakenUp(t *testing.T) {
	s, at, stop := servePlanner(t, "127.0.0.1:0")
	got := make(chan map[string][]measure.SumRule, 16)
	f := newFollower(followOptions{Planner: at, Host: "host-0", Sums: func(rules map[string][]measure.SumRule) { got <- rules }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	if rules := <-got; len(rules) > 0 {
		t.Errorf("at first: %v", rules)
	}
	for _, text := range []string{`[{"keys":"0-9","form":"none"},{"form":"host"}]`, ""} {
		require.Value(s.SetSums(t.Context(), &api.JobRules{Job: "a:1", Rules: text}))(t)
		want := require.Value(measure.ParseSumRules(text))(t)
		if rules := <-got; !reflect.DeepEqual(rules["a:1"], want) {
			t.Errorf("%v, want %s", rules, text)
		}
	}
	cancel()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What thresholds hold back changes all the time, and is reported less often than what measures
// do.
func TestNewsOfMeasures(t *testing.T) {
	told := []measure.Line{{Job: "a:1", Measure: measure.Threshold, State: measure.On, On: 1, Connections: 1, HeldValues: 7, HeldSquares: 6, StepSquares: 3}}
	held, state, none := slices.Clone(told), slices.Clone(told), slices.Clone(told)
	none[0].HeldValues, none[0].HeldSquares = 0, 0
	held[0].HeldValues, held[0].HeldSquares, held[0].StepSquares = 8, 9, 1
	state[0].State = measure.Off
	for name, c := range map[string]struct {
		lines []measure.Line
		due   bool
		want  bool
	}{
		"nothing": {slices.Clone(told), true, false}, "held back": {held, false, false}, "held back, due": {held, true, true},
		"nothing is held back any more": {none, false, true}, "state": {state, false, true}, "another job": {append(slices.Clone(told), measure.Line{Job: "b:1"}), false, true},
	} {
		if got := isNews(c.lines, told, c.due); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
