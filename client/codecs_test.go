package client

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/require"
)

// serveCodecs serves what a store has of rules, as a new planner does.
func serveCodecs(t *testing.T, kept store.Store) api.CodecsClient {
	t.Helper()
	s, err := planner.NewCodecs(t.Context(), kept)
	if err != nil {
		t.Fatal(err)
	}
	return api.NewCodecsClient(require.ServeInMemory(t, func(server *grpc.Server) { api.RegisterCodecsServer(server, s) }))
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
		if err != nil {
			t.Fatal(err)
		}
		_, second, err := other.Propose(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := one.Carry(t.Context(), c, first); err != nil {
			t.Fatal(err)
		}
		if _, _, err := other.Carry(t.Context(), c, second); status.Code(err) != codes.Aborted {
			t.Errorf("%s: the second change of the same rules: %v", name, err)
		}
		_, second, err = other.Propose(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := other.Carry(t.Context(), c, second); err != nil {
			t.Errorf("%s: once more: %v", name, err)
		}
		rules, _, err := other.Propose(t.Context(), c)
		if err != nil || !strings.Contains(rules, `"0-9"`) || !strings.Contains(rules, `"10-19"`) {
			t.Errorf("%s: the rules are %s, %v; want those of both changes", name, rules, err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	trial, err := c.Try(t.Context(), &api.TryCodecs{Seconds: 60})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := AwaitTrial(t.Context(), serveCodecs(t, kept), "", trial); err == nil || !strings.Contains(err.Error(), "restarted") {
		t.Errorf("the planner after it: %v", err)
	}
}
