package model

import (
	"encoding/json"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

// The area from histograms must be that of comparing all pairs.
func TestAUCIsThatOfComparingAllPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scores := rapid.SliceOfN(rapid.IntRange(-4000, 4000), 2, 60).Draw(t, "scores")
		var parts [3]Tally
		var yes, no []int
		for i, s := range scores {
			isYes := rapid.Bool().Draw(t, "yes")
			parts[i%3].Binary((float64(s)+0.5)/256, isYes)
			if isYes {
				yes = append(yes, s)
			} else {
				no = append(no, s)
			}
		}
		var all Tally
		for _, p := range parts {
			text := require.Value(json.Marshal(p))(t)
			var back Tally
			require.NoError(t, json.Unmarshal(text, &back))
			all.Add(back)
		}
		if int(all.Samples) != len(scores) {
			t.Fatalf("%d samples, want %d", all.Samples, len(scores))
		}
		if len(yes) == 0 || len(no) == 0 {
			if !math.IsNaN(all.AUC()) {
				t.Fatalf("area %v with one kind of sample", all.AUC())
			}
			return
		}
		pairs := 0.0
		for _, y := range yes {
			for _, n := range no {
				if y > n {
					pairs++
				} else if y == n {
					pairs += 0.5
				}
			}
		}
		if want := pairs / float64(len(yes)*len(no)); math.Abs(all.AUC()-want) > 1e-12 {
			t.Fatalf("area %v, want %v", all.AUC(), want)
		}
	})
}

func TestLoss(t *testing.T) {
	for _, tc := range []struct {
		odds float64
		yes  bool
		want float64
	}{{0, true, math.Ln2}, {2, true, 0.126928}, {2, false, 2.126928}, {-900, true, 900}, {900, true, 0}} {
		if got := LogisticLoss(tc.odds, tc.yes); math.Abs(got-tc.want) > 1e-6 {
			t.Errorf("loss of %v, %v: %v, want %v", tc.odds, tc.yes, got, tc.want)
		}
	}
	var tally Tally
	tally.Binary(1, true)
	tally.Binary(1, false)
	if tally.Accuracy() != 0.5 || math.Abs(tally.MeanLoss()-(0.313262+1.313262)/2) > 1e-6 {
		t.Errorf("accuracy %v, loss %v", tally.Accuracy(), tally.MeanLoss())
	}
}

func TestLossSince(t *testing.T) {
	var tally, mark Tally
	for i, losses := range [][]float64{{1, 3}, {8}, {0.5, 1, 1.5}} {
		want := 0.0
		for _, l := range losses {
			tally.Class(true, l)
			want += l / float64(len(losses))
		}
		if got := tally.LossSince(&mark); got != want {
			t.Errorf("mark %d: mean loss %v, want %v", i, got, want)
		}
	}
}
