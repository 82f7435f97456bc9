package main

import (
	"bytes"
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
