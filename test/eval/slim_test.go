package main

import (
	"fmt"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/model"
)

// runsOf returns runs with so many of 1,000 pictures right, and sent of 1,000 bytes.
func runsOf(sent int, right ...int) (runs []*result) {
	for _, n := range right {
		runs = append(runs, &result{last: model.Tally{Samples: 1000, Correct: int64(n)}, pushed: traffic{plain: 1000, encoded: sent}})
	}
	return runs
}

// TestEqualAccuracy: the variant that saves most within a standard error is chosen, not one
// that saves more and loses more; beyond 71% the one that loses least.
func TestEqualAccuracy(t *testing.T) {
	plain := measured{variant{name: "plain"}, runsOf(1000, 900, 902, 898)}
	within := measured{variant{name: "within"}, runsOf(450, 904, 902, 893)} // +4, 0, -5: -0.03 ± 0.26 points
	less := measured{variant{name: "less"}, runsOf(600, 900, 902, 898)}
	worse := measured{variant{name: "worse"}, runsOf(250, 880, 881, 879)}
	worst := measured{variant{name: "worst"}, runsOf(200, 800, 801, 799)}
	got := equalAccuracy([]measured{plain, less, within, worst, worse}).rows
	want := [][]string{{"most saved within one standard error", "within", "55.0", "-0.03", "0.26"}, {"least lost at 71% or more", "worse", "75.0", "-2.00", "0.06"}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got = equalAccuracy([]measured{plain, {variant{name: "bad"}, runsOf(900, 800, 800, 800)}}).rows
	if got[0][1] != "none" || got[1][1] != "none" {
		t.Errorf("got %q, want none", got)
	}
}
