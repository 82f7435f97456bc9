package report

import (
	"math"
	"strconv"
	"testing"

	"gonum.org/v1/plot/plotter"
)

// TestPlaces: what takes half of the time is in the middle between what takes all of it and
// what takes a quarter.
func TestPlaces(t *testing.T) {
	for _, tc := range []struct {
		name           string
		panel          Panel
		low, mid, high float64
	}{
		{"even", Panel{}, 10, 20, 30},
		{"logarithmic", Panel{LogY: true}, 10, 20, 40},
		{"gain", Panel{Gain: true}, 0, 100, 300},
		{"loss", Panel{Gain: true}, -50, 0, 100},
	} {
		below := tc.panel.place(tc.mid) - tc.panel.place(tc.low)
		above := tc.panel.place(tc.high) - tc.panel.place(tc.mid)
		if below <= 0 || math.Abs(below-above) > 1e-12 {
			t.Errorf("%s: %g, %g and %g are %g and %g apart", tc.name, tc.low, tc.mid, tc.high, below, above)
		}
	}
}

// TestMarks: an axis has marks that people can read, at their places, whatever the lines' ends.
func TestMarks(t *testing.T) {
	for _, tc := range []struct {
		name  string
		panel Panel
		ends  [2]float64
	}{
		{"dense graphs", Panel{Gain: true}, [2]float64{13, 120}},
		{"sparse graphs", Panel{Gain: true}, [2]float64{400, 40_000}},
		{"worse than random", Panel{Gain: true}, [2]float64{-40, 30}},
		{"time an edge", Panel{LogY: true}, [2]float64{78, 1900}},
		{"small fractions", Panel{LogY: true}, [2]float64{0.003, 0.02}},
	} {
		p := tc.panel
		p.Lines = []Line{{Name: "a", Points: plotter.XYs{{X: 1, Y: tc.ends[0]}, {X: 2, Y: tc.ends[1]}}}}
		drawn, err := p.plot(nil)
		if err != nil {
			t.Fatal(err)
		}
		marks := drawn.Y.Tick.Marker.Ticks(drawn.Y.Min, drawn.Y.Max)
		if len(marks) < 3 || len(marks) > 14 {
			t.Errorf("%s: %d marks: %v", tc.name, len(marks), marks)
		}
		if low, high := p.place(tc.ends[0]), p.place(tc.ends[1]); low < drawn.Y.Min || high > drawn.Y.Max {
			t.Errorf("%s: a line from %g to %g on an axis from %g to %g", tc.name, low, high, drawn.Y.Min, drawn.Y.Max)
		}
		for _, m := range marks {
			y, err := strconv.ParseFloat(m.Label, 64)
			if err != nil || p.place(y) != m.Value || m.Value < drawn.Y.Min || m.Value > drawn.Y.Max {
				t.Errorf("%s: a mark %q at %g of an axis from %g to %g", tc.name, m.Label, m.Value, drawn.Y.Min, drawn.Y.Max)
			}
		}
	}
}
