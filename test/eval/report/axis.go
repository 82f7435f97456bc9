package report

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// place returns where y stands on the axis, which is even in that. The plotter has uneven
// scales of its own, but puts the axis' label elsewhere than it makes room for it.
func (p *Panel) place(y float64) float64 {
	switch {
	case p.LogY:
		return math.Log10(y)
	case p.Gain:
		// What takes half of the time is as far from what takes all of it as a quarter
		// is from half, so that small improvements show beside large ones.
		return math.Log10((100 + y) / 100)
	}
	return y
}

// scaleY sets the ends of the y axis and, where the axis is uneven, its marks. It is called
// when all lines are in the plot, whose ends it takes.
func (p *Panel) scaleY(y *plot.Axis) {
	if p.Gain || !p.LogY {
		y.Min = min(0, y.Min)
	}
	if p.Floor != 0 {
		y.Min = p.place(p.Floor)
	}
	room := 0.05
	if p.Legend {
		room = 0.5
	}
	y.Max += room * (y.Max - y.Min)
	if !p.Gain && !p.LogY {
		return
	}
	if y.Min != 0 {
		y.Min -= 0.05 * (y.Max - y.Min)
	}
	y.Tick.Marker = p.marks(y.Min, y.Max)
}

// marks returns round numbers whose places are between the ends of the axis, least and most,
// none too close to the one before.
func (p *Panel) marks(least, most float64) plot.ConstantTicks {
	const apart = 0.07 // of the axis
	round := []float64{-50, -20, 0}
	lowest := 1 // decade
	if p.LogY {
		round, lowest = nil, int(math.Floor(least))
	}
	for decade := lowest; decade <= int(most)+2; decade++ {
		for _, digit := range []float64{1, 2, 5} {
			round = append(round, digit*math.Pow10(decade))
		}
	}
	var marks plot.ConstantTicks
	last := math.Inf(-1)
	for _, y := range round {
		if at := p.place(y); at >= least && at <= most && at-last >= apart*(most-least) {
			marks = append(marks, plot.Tick{Value: at, Label: strconv.FormatFloat(y, 'f', -1, 64)})
			last = at
		}
	}
	return marks
}
