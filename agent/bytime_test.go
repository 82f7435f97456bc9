package agent

import (
	"math"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page"
)

// The rows of a heatmap by time add up to what the workers did in all.
func TestHeatmapByTime(t *testing.T) {
	v := watched(t).Jobs()[0]
	q := page.HeatmapQuery{Blocks: 64, Last: math.MaxUint64, Measure: page.Accesses}
	byWorker := heatmap(&v, q)
	q.Rows, q.Range = 12, page.Range{From: time.Unix(0, v.First-1), To: time.Unix(0, v.Last+1)}
	sum := func(h page.Heatmap, rows ...int) (n uint64) {
		for i, row := range h.Counts {
			for _, c := range row {
				if len(rows) == 0 || i == rows[0] {
					n += c
				}
			}
		}
		return n
	}
	for i := -1; i < len(byWorker.Workers); i++ {
		want, names := sum(byWorker), []string(nil)
		if i >= 0 {
			want, names = sum(byWorker, i), byWorker.Workers[i:i+1]
		}
		q.Workers = names
		h := heatmapByTime(&v, q, time.Unix(0, v.Last))
		if off := int64(sum(h)) - int64(want); off < -12 || off > 12 || want == 0 { // rounded in each row
			t.Errorf("workers %v: %d in all rows, %d by worker", names, sum(h), want)
		}
		if len(h.Times) == 0 || len(h.Counts) != len(h.Times) || len(h.Blocks) == 0 {
			t.Errorf("workers %v: %d rows of counts, %d times, %d blocks", names, len(h.Counts), len(h.Times), len(h.Blocks))
		}
	}
	q.Workers = nil
	all := heatmapByTime(&v, q, time.Unix(0, v.Last))
	q.First, q.Last = all.Blocks[1].First, all.Blocks[2].Last
	some := heatmapByTime(&v, q, time.Unix(0, v.Last))
	if len(some.Blocks) == 0 || some.Blocks[0].First != q.First || some.Blocks[len(some.Blocks)-1].Last != q.Last {
		t.Errorf("of two of %d blocks: %+v", len(all.Blocks), some.Blocks)
	}
	for i, row := range some.Counts {
		of, n := all.Counts[i][1]+all.Counts[i][2], uint64(0)
		for _, c := range row {
			n += c
		}
		if off := int64(n) - int64(of); off < -4 || off > 4 { // rounded in each block
			t.Errorf("row %d of the keys %d to %d: %d uses, want %d", i, q.First, q.Last, n, of)
		}
	}
}

func TestShares(t *testing.T) {
	rows := page.RowsOf(time.Unix(100, 0), time.Unix(140, 0), 2)
	if len(rows) != 2 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, tc := range []struct {
		from, to    int64
		first, last float64
	}{{100, 110, 1, 0}, {110, 130, 0.5, 0.5}, {130, 130, 0, 1}, {90, 110, 0.5, 0}} {
		got := shares(rows, tc.from*1e9, tc.to*1e9)
		if math.Abs(got[0]-tc.first) > 1e-6 || math.Abs(got[1]-tc.last) > 1e-6 {
			t.Errorf("%d to %d: %v", tc.from, tc.to, got)
		}
	}
}
