package partition_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/require"
)

// TestEarlierAssignment writes an assignment of the first samples and reads it
// for all of them; the obvious way to the expectation is by feature ids.
func TestEarlierAssignment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 30).Draw(t, "samples")
		rows := make([][]uint64, n)
		for s := range rows {
			rows[s] = rapid.SliceOfNDistinct(rapid.Uint64Range(1, 40), 1, 6, rapid.ID[uint64]).Draw(t, "row")
		}
		known := rapid.IntRange(1, n).Draw(t, "earlier samples")
		all := require.Value(graph.FromRows(rows))(t)
		old := require.Value(graph.FromRows(rows[:known]))(t)
		k := rapid.IntRange(1, known).Draw(t, "k")
		a := &partition.Assignment{Samples: make([]int32, known), Params: make([]int32, old.Params())}
		for s := range a.Samples {
			a.Samples[s] = int32(s % k)
		}
		byFeature := map[uint64]int32{}
		for p := range a.Params {
			users := old.SamplesOf(p)
			a.Params[p] = a.Samples[users[rapid.IntRange(0, len(users)-1).Draw(t, "owner")]]
			byFeature[old.Feature(p)] = a.Params[p]
		}
		var text bytes.Buffer
		require.NoError(t, partition.WriteAssignment(&text, a))
		got := require.Value(partition.ReadEarlier(&text, "a.txt", all, k))(t)
		want := append(slices.Clone(a.Samples), slices.Repeat([]int32{-1}, n-known)...)
		if !slices.Equal(got.Samples, want) {
			t.Fatalf("samples %v, want %v", got.Samples, want)
		}
		for p, machine := range got.Params {
			want, ok := byFeature[all.Feature(p)]
			if !ok {
				want = -1
			}
			if machine != want {
				t.Fatalf("feature %d is on %d, want %d", all.Feature(p), machine, want)
			}
		}
	})
}

func TestEarlierAssignmentErrors(t *testing.T) {
	g := require.Value(graph.FromRows([][]uint64{{1, 2}, {2, 3}, {4, 5, 6}}))(t)
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", "0 lines belong to other data"},
		{"no number", "0\nx\n", `a.txt, line 2: "x": want a machine number from 0 to 1`},
		{"machine of a larger k", "0\n2\n0\n1\n0\n", "line 2"},
		{"other data", "0\n1\n0\n1\n", "its 4 lines belong to other data: the first 2 samples and their parameters make 5 lines"},
		{"too long", strings.Repeat("0\n", 10), "more lines than the 9 samples and parameters"},
		{"owners of other data", "0\n1\n1\n1\n0\n", "2 of 3 parameters are on machines without a sample that uses them"},
		{"smaller k", "0\n0\n0\n0\n0\n", "nothing on machine 1: it was not made for 2 machines"},
	} {
		_, err := partition.ReadEarlier(strings.NewReader(tc.text), "a.txt", g, 2)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
}

func FuzzReadEarlier(f *testing.F) {
	g := require.Value(graph.FromRows([][]uint64{{1, 2}, {2, 3}, {4, 5, 6}}))(f)
	f.Add("0\n1\n0\n1\n0\n")
	f.Add("0\n\n1\n")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := partition.ReadEarlier(strings.NewReader(text), "a.txt", g, 2)
		if err != nil {
			return
		}
		o := partition.Options{K: 2, From: a}
		if err := o.Validate(g); err != nil {
			t.Error(err)
		}
	})
}
