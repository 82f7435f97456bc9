package planner

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// Rules on sums reach followers beside those for values, and outlive the planner; those
// that people set the planner leaves alone.
func TestSums(t *testing.T) {
	kept := &store.Memory{}
	s := newService(t, kept)
	stream, _ := proxy(t, serve(t, s), "host-0")
	receive(t, stream)
	rules := func() map[string]string {
		t.Helper()
		all := map[string]string{}
		for _, j := range receive(t, stream).GetRules().GetSums() {
			all[j.GetJob()] = j.GetRules()
		}
		return all
	}
	require.Value(s.Set(t.Context(), &api.JobRules{Job: "a:1", Rules: on}))(t)
	if got := rules(); len(got) != 0 {
		t.Errorf("with rules for values alone: %v", got)
	}
	const none = `[{"keys":"0-9","form":"none"}]`
	require.Value(s.SetSums(t.Context(), &api.JobRules{Job: "a:1", Rules: none}))(t)
	if got := rules(); got["a:1"] != none {
		t.Errorf("after they were set: %v", got)
	}
	propose := func(job, name string, proposed ...measure.SumRule) {
		t.Helper()
		require.NoError(t, s.ProposeSums(t.Context(), job, name, proposed))
	}
	propose("a:1", "a:1", measure.SumRule{Form: measure.SumHost})
	propose("b:1", "a:1", measure.SumRule{Form: measure.SumHost}) // a run of a job whose name has rules
	propose("c:1", "team/c", measure.SumRule{Form: measure.SumHost})
	if got := rules(); len(got) != 2 || got["a:1"] != none || got["c:1"] != `[{"form":"host","by":"planner"}]` {
		t.Errorf("after proposals: %v", got)
	}
	again := newService(t, kept)
	if got := again.ProposedSums(); !slices.Equal(got, []string{"c:1"}) || again.sums["a:1"] != none || again.rules["a:1"] != on {
		t.Errorf("after a restart: %v, %v, %v", got, again.sums, again.rules)
	}
	propose("c:1", "team/c")
	if got := rules(); len(got) != 1 {
		t.Errorf("after a proposal was taken back: %v", got)
	}
	for _, bad := range []string{`[{"form":"rack"}]`, `[]`, `{`} {
		if _, err := s.SetSums(t.Context(), &api.JobRules{Job: "a:1", Rules: bad}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
