package prerun

import (
	"fmt"
	"image/color"
	"io"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// palette returns colours that remain distinct in grey and for most kinds of colour blindness
// (Okabe and Ito).
func palette() []color.Color {
	var colors []color.Color
	for _, rgb := range []uint32{0x999999, 0x56b4e9, 0x0072b2, 0xe69f00, 0xcc79a7, 0xd55e00, 0x009e73, 0x000000} {
		colors = append(colors, color.RGBA{uint8(rgb >> 16), uint8(rgb >> 8), uint8(rgb), 255})
	}
	return colors
}

// Plot draws the traffic per machine of several partitions of one graph, side by side, as a PNG: a
// group of bars for each machine, in which every partition has the same colour. There must be the
// same number of machines in all reports.
func Plot(w io.Writer, title string, reports []*Report) error {
	if len(reports) == 0 {
		return fmt.Errorf("nothing to plot")
	}
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "machine"
	p.Y.Label.Text = "parameters moved per step"
	p.Y.Min = 0
	p.Legend.Top = true
	p.Legend.XOffs = -vg.Points(6)
	k := reports[0].K
	// A machine's bars take four fifths of its place.
	width := vg.Points(max(1, min(14, 640/float64(k*len(reports)))))
	for i, r := range reports {
		values := make(plotter.Values, k)
		for machine, moved := range r.Traffic.PerMachine {
			values[machine] = float64(moved)
		}
		bars, err := plotter.NewBarChart(values, width)
		if err != nil {
			return fmt.Errorf("plotting %s: %w", r.Algorithm, err)
		}
		bars.Color = palette()[i%len(palette())]
		bars.LineStyle.Width = 0
		// The bars of a machine stand side by side, centred on its place.
		bars.Offset = width * vg.Length(float64(i)-float64(len(reports)-1)/2)
		p.Add(bars)
		p.Legend.Add(fmt.Sprintf("%s: max %d", r.Algorithm, r.Traffic.Max), bars)
	}
	var names []string
	for machine := range k {
		name := fmt.Sprint(machine)
		// Beyond 20 machines the labels would overlap.
		if k > 20 && machine%8 != 0 {
			name = ""
		}
		names = append(names, name)
	}
	p.NominalX(names...)
	// Machines are at 0 to k-1. Without margins the outer groups would be cut in half.
	p.X.Min, p.X.Max = -0.6, float64(k)-0.4
	// Room above the bars for the legend.
	p.Y.Max *= 1 + 0.07*float64(len(reports))
	plotWidth := width*vg.Length(k*len(reports))*5/4 + 2*vg.Inch
	return writePNG(w, p, max(plotWidth, 6*vg.Inch), 4.5*vg.Inch)
}

// writePNG renders a plot.
func writePNG(w io.Writer, p *plot.Plot, width, height vg.Length) error {
	drawing, err := p.WriterTo(width, height, "png")
	if err != nil {
		return fmt.Errorf("drawing the plot: %w", err)
	}
	if _, err := drawing.WriteTo(w); err != nil {
		return fmt.Errorf("writing the plot: %w", err)
	}
	return nil
}

// Table prints the reports as a table for people, beginning with the random baseline. There must be
// at least one report, and all must be of the same graph.
func Table(w io.Writer, reports []*Report) error {
	var text strings.Builder
	r := reports[0]
	fmt.Fprintf(&text, "%d samples, %d parameters, %d edges on %d machines\n\n", r.Samples, r.Parameters, r.Edges, r.K)
	fmt.Fprintf(&text, "%-12s %12s %14s %12s %9s %12s %9s\n", "algorithm", "max", "total", "bound", "max/bound", "over random", "seconds")
	fmt.Fprintf(&text, "%-12s %12.0f %14.0f %12.0f %9.3f %12s %9s\n", "(random x 5)", r.Random.Max, r.Random.Total,
		2*r.Random.Total/float64(r.K), ratio(r.Random.Max, 2*r.Random.Total/float64(r.K)), "", "")
	for _, r := range reports {
		fmt.Fprintf(&text, "%-12s %12d %14d %12.0f %9.3f %12s %9.2f\n", r.Algorithm, r.Traffic.Max, r.Traffic.Total,
			r.Bound, ratio(float64(r.Traffic.Max), r.Bound), improvement(r), r.Seconds)
	}
	fmt.Fprintf(&text, "\nmax: parameters that the busiest machine moves per step, both ends counted\n")
	fmt.Fprintf(&text, "total: remote (worker, parameter) pairs; bound = 2 x total / k, the least max of that total\n")
	_, err := io.WriteString(w, text.String())
	return err
}

// improvement formats the improvement over random.
func improvement(r *Report) string {
	if r.ImprovementPercent == nil {
		return "no traffic"
	}
	return fmt.Sprintf("%.1f%%", *r.ImprovementPercent)
}

// ratio returns a / b, 1 if b is 0: a figure that is compared with nothing is no worse than it.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 1
	}
	return a / b
}
