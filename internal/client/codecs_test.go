package client

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/grpctest"
	"github.com/psidecar/psidecar/test/require"
)

// serveCodecs serves what a store has of rules, as a new planner does.
func serveCodecs(t *testing.T, kept store.Store) api.CodecsClient {
	t.Helper()
	s := require.Value(planner.NewCodecs(t.Context(), kept))(t)
	return api.NewCodecsClient(grpctest.Serve(t, func(server *grpc.Server) { api.RegisterCodecsServer(server, s) }))
}

// proposal is a change of rules of either kind.
type proposal interface {
	Propose(ctx context.Context, c api.CodecsClient) (before, after string, err error)
	Carry(ctx context.Context, c api.CodecsClient, rules string) (d *api.CodecsDescription, following int, err error)
}

// Of two changes of the same rules at the same time the second is refused, and keeps the
// first one's rule when it is made again.
func TestConcurrentChangesOfRules(t *testing.T) {
	c := serveCodecs(t, &store.Memory{})
	future := ChangeOptions{Job: "a:1", Sets: true, Ahead: true}
	ofValues := func(first uint64) proposal {
		rule := values.Rule{Keys: values.Range{First: first, Last: first + 9}, Quantize: 8}
		return &RuleChange{future, func(before []values.Rule) ([]values.Rule, error) { return append([]values.Rule{rule}, before...), nil }}
	}
	ofSums := func(first uint64) proposal {
		rule := measure.SumRule{Keys: &measure.KeyRange{First: first, Last: first + 9}, Form: measure.SumHost}
		return &SumsChange{future, func(before []measure.SumRule) ([]measure.SumRule, error) {
			return append([]measure.SumRule{rule}, before...), nil
		}}
	}
	for name, change := range map[string]func(first uint64) proposal{"values": ofValues, "sums": ofSums} {
		one, other := change(0), change(10)
		_, first, err := one.Propose(t.Context(), c)
		require.NoError(t, err)
		_, second, err := other.Propose(t.Context(), c)
		require.NoError(t, err)
		if _, _, err := one.Carry(t.Context(), c, first); err != nil {
			t.Fatal(err)
		}
		if _, _, err := other.Carry(t.Context(), c, second); status.Code(err) != codes.Aborted {
			t.Errorf("%s: the second change of the same rules: %v", name, err)
		}
		_, second, err = other.Propose(t.Context(), c)
		require.NoError(t, err)
		if _, _, err := other.Carry(t.Context(), c, second); err != nil {
			t.Errorf("%s: once more: %v", name, err)
		}
		rules, _, err := other.Propose(t.Context(), c)
		if err != nil || !strings.Contains(rules, `"0-9"`) || !strings.Contains(rules, `"10-19"`) {
			t.Errorf("%s: the rules are %s, %v; want those of both changes", name, rules, err)
		}
	}
}

// restarting is a planner that restarts when rules have been set.
type restarting struct {
	api.CodecsClient
	restart func() api.CodecsClient
}

func (c *restarting) Set(ctx context.Context, r *api.JobRules, o ...grpc.CallOption) (*api.CodecsSet, error) {
	set, err := c.CodecsClient.Set(ctx, r, o...)
	c.CodecsClient = c.restart()
	return set, err
}

// Rules that were set just before the planner restarts are in effect once the proxies have them of
// the planner after it, whose versions are lower. Where it has forgotten them that is an error.
func TestPlannerRestartsWhenRulesAreSet(t *testing.T) {
	for name, forgets := range map[string]bool{"with its store": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			kept := &store.Memory{}
			c := &restarting{CodecsClient: serveCodecs(t, kept), restart: func() api.CodecsClient {
				if forgets {
					kept = &store.Memory{}
				}
				next := serveCodecs(t, kept)
				proxy, err := next.Follow(t.Context())
				if err == nil {
					err = proxy.Send(&api.CodecReport{Host: "host-0"})
				}
				require.NoError(t, err)
				order, err := proxy.Recv()
				if err == nil {
					err = proxy.Send(&api.CodecReport{Host: "host-0", Version: order.GetRules().GetVersion()})
				}
				require.NoError(t, err)
				return next
			}}
			for _, job := range []string{"b:1", "c:1", "d:1"} { // so that versions are higher than after the restart
				require.Value(c.CodecsClient.Set(t.Context(), &api.JobRules{Job: job, Rules: `[{"quantize":8}]`}))(t)
			}
			change := &RuleChange{ChangeOptions{Job: "a:1", Sets: true, Ahead: true, Wait: 10 * time.Second}, func([]values.Rule) ([]values.Rule, error) {
				return []values.Rule{{Quantize: 8}}, nil
			}}
			_, rules, err := change.Propose(t.Context(), c)
			require.NoError(t, err)
			_, following, err := change.Carry(t.Context(), c, rules)
			switch {
			case forgets && (err == nil || !strings.Contains(err.Error(), "forgotten")):
				t.Errorf("rules that are forgotten: %v", err)
			case !forgets && (err != nil || following != 1):
				t.Errorf("%d proxies have the rules, %v", following, err)
			}
		})
	}
}

// A trial that the planner does not know any more has no results.
func TestTrialOfAPlannerThatRestarts(t *testing.T) {
	kept := &store.Memory{}
	c := serveCodecs(t, kept)
	proxy, err := c.Follow(t.Context())
	if err == nil {
		err = proxy.Send(&api.CodecReport{Host: "host-0"})
	}
	if err == nil {
		_, err = proxy.Recv() // it follows
	}
	require.NoError(t, err)
	trial := require.Value(c.Try(t.Context(), &api.TryCodecs{Seconds: 60}))(t)
	if _, err := AwaitTrial(t.Context(), serveCodecs(t, kept), "", trial); err == nil || !strings.Contains(err.Error(), "restarted") {
		t.Errorf("the planner after it: %v", err)
	}
}
