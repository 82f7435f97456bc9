package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestHashedPoint: random rows have as many different features as they should; hashed to bins
// and divided, they have a volume by each algorithm.
func TestHashedPoint(t *testing.T) {
	rows := randomRows(60, 50, 7)
	if rows.Len() != 60 || len(rows.ID) != 60*7 {
		t.Fatalf("%d rows of %d features", rows.Len(), len(rows.ID))
	}
	for i := range rows.Len() {
		seen := map[uint64]bool{}
		for _, id := range rows.ID[rows.Start[i]:rows.Start[i+1]] {
			seen[id] = id < 50
		}
		if len(seen) != 7 {
			t.Errorf("row %d has %d different features", i, len(seen))
		}
	}
	e := &evaluation{log: &bytes.Buffer{}}
	p, err := e.hashedPoint(t.Context(), "a figure", rows, 4, 2, 2)
	if err != nil || p.x != 2 || len(p.volumes) != 3 || p.volumes[0] <= 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestHashedShapes computes what the paper's text says from made figures.
func TestHashedShapes(t *testing.T) {
	of := func(random, mgp, dppa float64) hashedPoint { return hashedPoint{1, []float64{random, mgp, dppa}} }
	series := [4][]hashedPoint{{of(10, 8, 4), of(20, 10, 5)}, {of(30, 20, 10), of(60, 40, 30)}, {of(9, 6, 5), of(9, 6, 5)}, {of(9, 4, 2), of(9, 8, 6)}}
	var text bytes.Buffer
	if err := hashedShapes(series).write(&text); err != nil {
		t.Fatal(err)
	}
	for row, want := range map[string]string{"volume with the most machines, of that with the fewest": "3.00", "volume with few bins, of that with more": "0.17",
		"DPPA, of random, at most": "0.500", "DPPA, of MGP, at most": "0.750", "volume with the most samples for each parameter, of that with the fewest": "3.00",
		"MGP by DPPA, more bins": "1.500", "MGP by DPPA, few bins": "1.200"} {
		found := false
		for line := range strings.SplitSeq(text.String(), "\n") {
			found = found || strings.HasPrefix(line, "| "+row+" ") && strings.HasSuffix(line, " "+want+" |")
		}
		if !found {
			t.Errorf("%s is not %s in\n%s", row, want, text.String())
		}
	}
}
