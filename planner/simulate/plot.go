package simulate

import (
	"fmt"
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/psidecar/psidecar/planner/dynamic"
)

// Plot draws, as a PNG, the bytes of the busiest machine in each epoch, and their running sum, for
// each strategy.
func Plot(w io.Writer, title string, results []Result) error {
	each, err := panel(title, "epoch", "MB of the busiest machine", results, func(r *Result) plotter.XYs {
		return points(r, func(e, _ Epoch) float64 { return e.Busiest })
	})
	if err != nil {
		return err
	}
	sum, err := panel(title, "epoch", "MB of the busiest machine, cumulative", results, func(r *Result) plotter.XYs {
		return points(r, func(_, sum Epoch) float64 { return sum.Busiest })
	})
	if err != nil {
		return err
	}
	return Panels(w, []*plot.Plot{each, sum})
}

// points returns a curve over the epochs, in MB. y gets an epoch and the sum up to and including
// it.
func points(r *Result, y func(e, sum Epoch) float64) plotter.XYs {
	var sum Epoch
	curve := make(plotter.XYs, len(r.Epochs))
	for i, e := range r.Epochs {
		sum.Busiest += e.Busiest
		sum.Total += e.Total
		curve[i] = plotter.XY{X: float64(i), Y: y(e, sum) / 1e6}
	}
	return curve
}

// Cumulative draws the running sum of the bytes of all machines, as DW23 Fig. 8 does.
func Cumulative(title string, results []Result) (*plot.Plot, error) {
	return panel(title, "epoch", "MB between machines, cumulative", results, func(r *Result) plotter.XYs {
		return points(r, func(_, sum Epoch) float64 { return sum.Total })
	})
}

// Busiest draws the running sum of the bytes of the busiest machine.
func Busiest(title string, results []Result) (*plot.Plot, error) {
	return panel(title, "epoch", "MB of the busiest machine, cumulative", results, func(r *Result) plotter.XYs {
		return points(r, func(_, sum Epoch) float64 { return sum.Busiest })
	})
}

// panel draws one curve for each result.
func panel(title, x, y string, results []Result, curve func(*Result) plotter.XYs) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs, p.Legend.YOffs, p.Legend.Padding = vg.Points(6), -vg.Points(4), vg.Points(2)
	p.Add(plotter.NewGrid())
	for i := range results {
		l, err := plotter.NewLine(curve(&results[i]))
		if err != nil {
			return nil, fmt.Errorf("plotting %s: %w", results[i].Strategy, err)
		}
		// Colours go by name, not by position, so plots of different sets of strategies can be
		// compared.
		l.Color, l.Width = colour(results[i].Strategy), vg.Points(1.5)
		p.Add(l)
		p.Legend.Add(results[i].Strategy, l)
	}
	return p, nil
}

// colour returns the colour of a strategy, which is the same in every plot: colours of Okabe and
// Ito, which remain distinct in grey and for most kinds of colour blindness.
func colour(strategy string) color.Color {
	rgbs := []uint32{0x999999, 0x56b4e9, 0xe69f00, 0xcc79a7, 0x009e73, 0xd55e00}
	for i, name := range dynamic.Names() {
		if name == strategy {
			return color.RGBA{uint8(rgbs[i] >> 16), uint8(rgbs[i] >> 8), uint8(rgbs[i]), 255}
		}
	}
	return color.Black
}

// Panels writes plots side by side as a PNG.
func Panels(w io.Writer, panels []*plot.Plot) error {
	const width, height = 5.5 * vg.Inch, 4.2 * vg.Inch
	canvas := vgimg.New(width*vg.Length(len(panels)), height)
	all := draw.New(canvas)
	for i, p := range panels {
		// Crop takes distances from both edges, and negative ones at the right.
		left, right := width*vg.Length(i), width*vg.Length(len(panels)-1-i)
		p.Draw(draw.Crop(all, left, -right, 0, 0))
	}
	if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(w); err != nil {
		return fmt.Errorf("writing the plot: %w", err)
	}
	return nil
}
