package main

import (
	"fmt"
	"image/color"
	"io"
	"slices"
	"strconv"

	"github.com/psidecar/psidecar/planner/algorithm"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// A panel is one diagram of a figure: lines over one axis.
type panel struct {
	title, x, y string
	lines       []line
	ticks       []float64 // of the x axis; nil: chosen by the plotter
	logX        bool
	logY        bool
	floor       float64 // the y axis begins here, unless it is 0
}

// A line is one of a panel's curves. Its colour is that of its name
// everywhere.
type line struct {
	name   string
	points plotter.XYs
}

// colour returns colours that stay apart in grey and for most kinds of colour blindness (Okabe and
// Ito's), one for each place in the order of the algorithms,
// the first for anything else.
func colour(i int) color.Color {
	rgbs := []uint32{0x000000, 0x999999, 0x56b4e9, 0x0072b2, 0xe69f00, 0xcc79a7, 0x009e73, 0xd55e00}
	rgb := rgbs[i%len(rgbs)]
	return color.RGBA{uint8(rgb >> 16), uint8(rgb >> 8), uint8(rgb), 255}
}

// place returns the place of a line's name in the order of the algorithms.
func place(name string) int {
	return slices.IndexFunc(algorithm.All(), func(al algorithm.Algorithm) bool { return display(al.Name) == name }) + 1
}

func shape(i int) draw.GlyphDrawer {
	shapes := []draw.GlyphDrawer{draw.PlusGlyph{}, draw.CrossGlyph{}, draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.RingGlyph{}, draw.PyramidGlyph{}}
	return shapes[i%len(shapes)]
}

// plot draws the panel, with a legend where asked.
func (p *panel) plot(legend bool) (*plot.Plot, error) {
	drawn := plot.New()
	drawn.Title.Text = p.title
	drawn.Title.Padding = vg.Points(6)
	drawn.X.Label.Text, drawn.Y.Label.Text = p.x, p.y
	drawn.Add(plotter.NewGrid())
	for at, l := range p.lines {
		i := place(l.name)
		if i == 0 {
			i = at + 1
		}
		curve, points, err := plotter.NewLinePoints(l.points)
		if err != nil {
			return nil, fmt.Errorf("plotting %s: %w", l.name, err)
		}
		curve.Color, points.Color = colour(i), colour(i)
		curve.Width = vg.Points(1.5)
		points.Shape, points.Radius = shape(i), vg.Points(3)
		drawn.Add(curve, points)
		if legend {
			drawn.Legend.Add(l.name, curve, points)
		}
	}
	drawn.Legend.Padding = vg.Points(2)
	drawn.Legend.XOffs, drawn.Legend.YOffs = -vg.Points(6), -vg.Points(6)
	drawn.Legend.Top = true
	if p.logX {
		drawn.X.Scale = plot.LogScale{}
	}
	if p.logY {
		drawn.Y.Scale, drawn.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		drawn.Y.Max *= 4
	} else {
		drawn.Y.Min = min(0, drawn.Y.Min)
		if p.floor != 0 {
			drawn.Y.Min = p.floor
		}
		// Room above the lines for the legend.
		drawn.Y.Max += 0.5 * (drawn.Y.Max - drawn.Y.Min)
	}
	if p.ticks != nil {
		var marks plot.ConstantTicks
		for _, t := range p.ticks {
			drawn.X.Min, drawn.X.Max = min(drawn.X.Min, t), max(drawn.X.Max, t)
			marks = append(marks, plot.Tick{Value: t, Label: strconv.FormatFloat(t, 'g', 4, 64)})
		}
		drawn.X.Tick.Marker = marks
	}
	return drawn, nil
}

// writePanels draws panels side by side as a PNG, the legend in the first.
func writePanels(w io.Writer, panels []panel) error {
	const width, height = 4.6 * vg.Inch, 4.2 * vg.Inch
	row := make([]*plot.Plot, len(panels))
	for i := range panels {
		p, err := panels[i].plot(i == 0)
		if err != nil {
			return err
		}
		row[i] = p
	}
	image := vgimg.NewWith(vgimg.UseWH(width*vg.Length(len(panels)), height), vgimg.UseDPI(110))
	tiles := draw.Tiles{
		Rows: 1, Cols: len(panels), PadX: vg.Points(14),
		PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(12),
	}
	for i, canvas := range plot.Align([][]*plot.Plot{row}, tiles, draw.New(image))[0] {
		row[i].Draw(canvas)
	}
	if _, err := (vgimg.PngCanvas{Canvas: image}).WriteTo(w); err != nil {
		return fmt.Errorf("writing a plot: %w", err)
	}
	return nil
}
