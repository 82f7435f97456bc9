package dataset

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// twoHashTopics returns n rows of two classes, each with words of its own class, of
// the other and of both.
func twoHashTopics(t *testing.T, n int) *Rows {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	var text strings.Builder
	for r := range n {
		label, own := 1-2*(r%2), 100*(1+r%2)
		ids := map[int]bool{}
		for len(ids) < 20 {
			switch u := random.Float64(); {
			case u < 0.5:
				ids[own+random.IntN(100)] = true
			case u < 0.65:
				ids[300-own+random.IntN(100)] = true
			default:
				ids[400+random.IntN(100)] = true
			}
		}
		sorted := make([]int, 0, len(ids))
		for id := range ids {
			sorted = append(sorted, id)
		}
		slices.Sort(sorted)
		fmt.Fprint(&text, label)
		for _, id := range sorted {
			fmt.Fprintf(&text, " %d:%d", id, 1+random.IntN(3))
		}
		text.WriteByte('\n')
	}
	return read(t, text.String())
}

// read reads libsvm text.
func read(t *testing.T, text string) *Rows {
	t.Helper()
	all := &Rows{Start: []int{0}}
	err := Read(t.Context(), strings.NewReader(text), "text", Options{}, func(rows *Rows) error {
		for r := range rows.Len() {
			ids, values := rows.Features(r)
			all.ID, all.Value = append(all.ID, ids...), append(all.Value, values...)
			all.Start = append(all.Start, len(all.ID))
			all.Line, all.Label = append(all.Line, rows.Line[r]), append(all.Label, rows.Label[r])
		}
		return nil
	})
	require.NoError(t, err)
	return all
}

func TestHashDatasetIsRowByRow(t *testing.T) {
	rows := twoHashTopics(t, 101)
	for _, o := range []HashOptions{{Scheme: OPH, Bins: 10}, {Scheme: BCWS, Bins: 7, Bits: 3, Seed: 5}} {
		hashed := require.Value(HashDataset(t.Context(), rows, o))(t)
		h := require.Value(NewHasher(o))(t)
		if hashed.Len() != rows.Len() || !slices.Equal(hashed.Label, rows.Label) || !slices.Equal(hashed.Line, rows.Line) {
			t.Fatalf("%v: %d rows, want %d with the same labels", o, hashed.Len(), rows.Len())
		}
		for r := range rows.Len() {
			ids, values := rows.Features(r)
			want := require.Value(h.Append(nil, ids, values))(t)
			got, ones := hashed.Features(r)
			if !slices.Equal(got, want) || slices.Min(ones) != 1 || slices.Max(ones) != 1 {
				t.Fatalf("%v, row %d: %v of %v, want %v", o, r, got, ones, want)
			}
		}
	}
}

func TestHashDatasetRefuses(t *testing.T) {
	rows := read(t, "1 1:2 2:1\n-1 3:-4\n")
	if _, err := HashDataset(t.Context(), rows, HashOptions{Scheme: BCWS, Bins: 4}); err == nil || !strings.Contains(err.Error(), "line 2: feature 3 has the value -4") {
		t.Errorf("negative value: got %v", err)
	}
	if _, err := HashDataset(t.Context(), rows, HashOptions{}); err == nil {
		t.Error("no bins: no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := HashDataset(ctx, rows, HashOptions{Bins: 4}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: got %v", err)
	}
}

func TestEvaluate(t *testing.T) {
	rows := twoHashTopics(t, 3000)
	before := require.Value(Evaluate(t.Context(), rows, 1))(t)
	if again, err := Evaluate(t.Context(), rows, 1); err != nil || again != before {
		t.Errorf("the same seed gave %v, then %v, %v", before, again, err)
	}
	if before.Test < 0.9 || before.Train < before.Test-0.02 {
		t.Errorf("accuracy %+v: want above 0.9", before)
	}
	var last float64
	for _, bins := range []int{1, 8, 64} {
		hashed := require.Value(HashDataset(t.Context(), rows, HashOptions{Bins: bins}))(t)
		after := require.Value(Evaluate(t.Context(), hashed, 1))(t)
		if after.Test < last+0.02 || after.Test > before.Test+0.02 {
			t.Errorf("%d bins: accuracy %+v; with fewer bins %.3f, unhashed %.3f", bins, after, last, before.Test)
		}
		last = after.Test
	}
	// What carries no information is not learned.
	for r := range rows.Label {
		rows.Label[r] = float32(r / 2 % 2)
	}
	if a, err := Evaluate(t.Context(), rows, 1); err != nil || a.Test > 0.6 {
		t.Errorf("labels at random: accuracy %+v, %v", a, err)
	}
}

func TestEvaluateRefuses(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"one class", strings.Repeat("0 1:1\n", 20), "1 different labels, want 2"},
		{"three classes", strings.Repeat("0 1:1\n1 2:1\n2 3:1\n", 20), "3 different labels, want 2"},
		{"few rows", "0 1:1\n1 2:1\n", "2 rows are too few"},
	} {
		if _, err := Evaluate(t.Context(), read(t, tc.text), 1); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q in it", tc.name, err, tc.want)
		}
	}
}
