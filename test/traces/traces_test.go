package traces

import (
	"slices"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

func collect(t *testing.T, uses Trace) []recording.Use {
	t.Helper()
	var all []recording.Use
	err := uses(func(u *recording.Use) error {
		use := *u
		use.Keys = slices.Clone(u.Keys)
		all = append(all, use)
		return nil
	})
	require.NoError(t, err)
	return all
}

func count() train.CountOptions {
	return train.CountOptions{Keys: 1000, Batch: 20, Favourites: 50, Common: 0.1, Skew: 1, Wander: 10}
}

// Every request names the keys of one server, ascending; a worker pushes and
// pulls the same keys; favourites stay for an era and then change.
func TestWandering(t *testing.T) {
	uses := require.Value(Wandering{Workers: 3, Servers: 2, Steps: 20, Width: 2, Seed: 7, Count: count()}.Trace())(t)
	all := collect(t, uses)
	used := [2]map[uint64]bool{{}, {}} // by worker 0, by era
	perStep := map[[2]any]int{}
	for i, u := range all {
		if !slices.IsSorted(u.Keys) || len(u.Keys) == 0 {
			t.Fatalf("use %d has keys %v", i, u.Keys)
		}
		for _, k := range u.Keys {
			if rank, ok := pslite.Owner(k, 2); !ok || pslite.NodeName(pslite.ServerID(rank)) != u.Server {
				t.Fatalf("key %d is asked of %s", k, u.Server)
			}
			if u.Worker == "worker0" {
				used[u.Timestamp/20][k] = true
			}
		}
		if u.Push != (u.Bytes > 0) || u.Push && u.Bytes != uint64(8*len(u.Keys)) {
			t.Fatalf("use %d has %d bytes for %d keys", i, u.Bytes, len(u.Keys))
		}
		perStep[[2]any{u.Worker, u.Timestamp}] += len(u.Keys)
	}
	if len(perStep) != 3*40 {
		t.Errorf("%d requests, want 120", len(perStep))
	}
	for request, n := range perStep {
		if n != 20 {
			t.Errorf("request %v has %d keys", request, n)
		}
	}
	both := 0
	for k := range used[0] {
		if used[1][k] {
			both++
		}
	}
	if len(used[0]) > 100 || both > len(used[0])/2 {
		t.Errorf("worker 0 uses %d keys, then %d, %d of them the same", len(used[0]), len(used[1]), both)
	}
}

func TestPruning(t *testing.T) {
	p := Pruning{Workers: 2, Servers: 2, Pictures: DrawImages(400, 12, 1), Hidden: 12, Batch: 8, Snapshots: 6, Rounds: 12,
		Sparsity: 0.9, Epsilon: 0.01, Own: 0.8, LearningRate: 0.2, Seed: 1}
	var report PruningReport
	uses := require.Value(p.Trace(&report))(t)
	all := collect(t, uses)
	pulled := map[string]int{}
	first, last := 0, 0
	for i, u := range all {
		if u.Pull {
			pulled[u.Worker] += len(u.Keys)
			if i < len(all)/6 {
				first += len(u.Keys)
			} else if i > 5*len(all)/6 {
				last += len(u.Keys)
			}
		}
	}
	if report.Parameters != 144*12+12+12*10+10 || len(report.Left) != 6 || !slices.IsSortedFunc(report.Left, func(a, b int) int { return b - a }) {
		t.Errorf("the report is %+v", report)
	}
	if last*4 > first || len(pulled) != 2 {
		t.Errorf("pulls of %d keys at first and of %d at last, by %v", first, last, pulled)
	}
	if end := report.Accuracy[5]; end < 0.8 || end < report.Accuracy[0] {
		t.Errorf("accuracy goes %v", report.Accuracy)
	}
	again := require.Value(p.Trace(&PruningReport{}))(t)
	if !slices.EqualFunc(all, collect(t, again), func(a, b recording.Use) bool { return a.Worker == b.Worker && slices.Equal(a.Keys, b.Keys) }) {
		t.Error("the same seed gives another trace")
	}
}
