package agent

import (
	"math"
	"testing"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/internal/page"
)

// The stated error of a cell of pulls and pushes together is that of its pulls
// alone, which are looked at in the same steps, and bytes as the uses that moved
// them.
func TestErrorOfCells(t *testing.T) {
	s := &page.JobSampling{Requests: 40_000, Sampled: 10_000, Estimated: 40_000, Spread: 120_000}
	total := counts.Sums{counts.Pulls: 6000, counts.Pushes: 6000, counts.PulledBytes: 240_000, counts.PushedBytes: 480_000}
	half := func(n uint64) [][]uint64 { return [][]uint64{{n / 2, 0}, {0, n / 2}} }
	want := 100 * s.CountError(3000) / 3000
	for m, cells := range map[page.Measure][][]uint64{
		page.Pulls: half(6000), page.Pushes: half(6000), page.Accesses: half(12_000),
		page.PulledBytes: half(240_000), page.PushedBytes: half(480_000), page.Bytes: half(720_000),
	} {
		if got := errorOfCells(s, total, m, cells); math.Abs(got/want-1) > 1e-9 {
			t.Errorf("%s: %v%%, want %v%%", m, got, want)
		}
	}
	if got := errorOfCells(s, total, page.Pulls, half(0)); got != 0 {
		t.Errorf("of empty cells: %v", got)
	}
}
