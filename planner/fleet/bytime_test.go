package fleet

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// Every use is in the row of its time and in its block, of the workers that were
// asked for.
func TestHeatmapByTime(t *testing.T) {
	const seconds = 120
	var uses []use
	for s := 1; s <= seconds; s++ { // keys wander: 0 to 120, one a second
		uses = append(uses, use{at: s, host: s % 2, key: uint64(s), worker: []string{"worker0", "worker1"}[s%2], server: "server0", micros: 10})
	}
	reports := func(second int) []*api.HostReport {
		return []*api.HostReport{reportOf(uses, 0, second, 16), reportOf(uses, 1, second, 32)}
	}
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	s := &State{
		Reports: func() []*api.HostReport { return reports(seconds) },
		Past: func(to time.Time) ([]*api.HostReport, []time.Time) {
			kept := max(int(to.Unix())/5*5, 0)
			return reports(kept), []time.Time{at(kept), at(kept)}
		},
	}
	for _, tc := range []struct {
		workers []string
		want    uint64
	}{{nil, seconds}, {[]string{"worker1"}, seconds / 2}} {
		h, err := s.heatmapByTime("j:1", page.HeatmapQuery{Blocks: 8, Last: 1<<64 - 1, Measure: page.Pushes, Rows: 12, Workers: tc.workers, Range: page.Range{From: at(0), To: at(seconds)}}, at(seconds))
		require.NoError(t, err)
		all := uint64(0)
		for i, row := range h.Counts {
			if len(row) != len(h.Blocks) {
				t.Fatalf("row %d has %d counts of %d blocks", i, len(row), len(h.Blocks))
			}
			for b, n := range row {
				all += n
				// The keys of a row are those of its seconds.
				first, last := uint64(h.Blocks[b].First), uint64(h.Blocks[b].Last)
				if from, to := uint64(h.Times[i].From.Unix()), uint64(h.Times[i].To.Unix()); n > 0 && (last < from || first > to+5) {
					t.Errorf("%d uses of keys %d to %d in the seconds %d to %d", n, first, last, from, to)
				}
			}
		}
		if all != tc.want || len(h.Times) < 12 || len(h.Blocks) != 4 {
			t.Errorf("of %v: %d uses in %d rows and %d blocks, want %d", tc.workers, all, len(h.Times), len(h.Blocks), tc.want)
		}
		coarse, err := s.heatmapByTime("j:1", page.HeatmapQuery{Blocks: 2, Last: 1<<64 - 1, Measure: page.Pushes, Rows: 12, Workers: tc.workers, Range: h.Range}, at(seconds))
		if err != nil || len(coarse.Blocks) != 2 || coarse.Finest || !h.Finest {
			t.Fatalf("in two blocks: %+v, %v", coarse, err)
		}
		for i, row := range coarse.Counts {
			if row[0] != h.Counts[i][0]+h.Counts[i][1] || row[1] != h.Counts[i][2]+h.Counts[i][3] {
				t.Errorf("row %d in two blocks is %v, in four %v", i, row, h.Counts[i])
			}
		}
	}
}

// A stretch of time in which no key was used has no blocks.
func TestHeatmapOfAQuietRange(t *testing.T) {
	uses := []use{{at: 1, host: 0, key: 3, worker: "worker0", server: "server0", micros: 10}}
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	s := &State{
		Reports: func() []*api.HostReport { return []*api.HostReport{reportOf(uses, 0, 100, 16)} },
		Past: func(to time.Time) ([]*api.HostReport, []time.Time) {
			kept := int(to.Unix())
			return []*api.HostReport{reportOf(uses, 0, kept, 16)}, []time.Time{at(kept)}
		},
	}
	h, err := s.heatmapByTime("j:1", page.HeatmapQuery{Blocks: 8, Last: 1<<64 - 1, Measure: page.Pushes, Rows: 4, Range: page.Range{From: at(50), To: at(100)}}, at(100))
	if err != nil || len(h.Blocks) != 0 || len(h.Times) == 0 {
		t.Errorf("%d blocks in %d rows, error %v; want rows without blocks", len(h.Blocks), len(h.Times), err)
	}
}
