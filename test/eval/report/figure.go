package report

import (
	"fmt"
	"image/color"
	"io"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Panel is one diagram of a figure: lines over one axis. Its zero fields mean an ordinary
// diagram, with even axes and the legend of the first panel.
type Panel struct {
	Title, X, Y string
	Lines       []Line
	Ticks       []float64 // of the x axis; nil: chosen by the plotter
	LogX        bool
	LogY        bool
	Gain        bool    // y is an improvement in percent, the axis even in the logarithm of 100 + y
	Floor       float64 // the y axis begins here, unless it is 0
	Legend      bool    // its lines are not those of the first panel
}

// A Line is one of a panel's curves.
type Line struct {
	Name   string
	Points plotter.XYs
	Colour int // from 1 on; 0: by the line's place among the panel's
}

// colour returns one of a few colours that stay apart in grey and for most kinds of colour
// blindness (Okabe and Ito's).
func colour(i int) color.Color {
	rgbs := []uint32{0x000000, 0x999999, 0x56b4e9, 0x0072b2, 0xe69f00, 0xcc79a7, 0x009e73, 0xd55e00}
	rgb := rgbs[i%len(rgbs)]
	return color.RGBA{uint8(rgb >> 16), uint8(rgb >> 8), uint8(rgb), 255}
}

// dashes returns the pattern of a line. Some are broken, so that what lies beneath them shows.
func dashes(i int) []vg.Length {
	if i%4 == 1 {
		return []vg.Length{vg.Points(5), vg.Points(4)}
	}
	return nil
}

// shape returns the mark of a line's points, so that lines differ without colours as well.
func shape(i int) draw.GlyphDrawer {
	shapes := []draw.GlyphDrawer{draw.PlusGlyph{}, draw.CrossGlyph{}, draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.RingGlyph{}, draw.PyramidGlyph{}}
	return shapes[i%len(shapes)]
}

// plot draws the panel and enters its lines into its own legend, if it has one, or into the
// given one, which may be nil.
func (p *Panel) plot(legend *plot.Legend) (*plot.Plot, error) {
	drawn := plot.New()
	if p.Legend {
		legend = &drawn.Legend
	}
	drawn.Title.Text = p.Title
	drawn.Title.Padding = vg.Points(6)
	drawn.X.Label.Text, drawn.Y.Label.Text = p.X, p.Y
	drawn.Add(plotter.NewGrid())
	for at, l := range p.Lines {
		i := l.Colour
		if i == 0 {
			i = at + 1
		}
		placed := make(plotter.XYs, len(l.Points))
		for at, point := range l.Points {
			placed[at] = plotter.XY{X: point.X, Y: p.place(point.Y)}
		}
		curve, points, err := plotter.NewLinePoints(placed)
		if err != nil {
			return nil, fmt.Errorf("plotting %s: %w", l.Name, err)
		}
		curve.Color, points.Color = colour(i), colour(i)
		curve.Width, curve.Dashes = vg.Points(1.5), dashes(i)
		points.Shape, points.Radius = shape(i), vg.Points(3)
		drawn.Add(curve, points)
		if legend != nil {
			legend.Add(l.Name, curve, points)
		}
	}
	drawn.Legend.Padding = vg.Points(2)
	drawn.Legend.XOffs, drawn.Legend.YOffs = -vg.Points(6), -vg.Points(6)
	drawn.Legend.Top = true
	if p.LogX {
		drawn.X.Scale = plot.LogScale{}
	}
	p.scaleY(&drawn.Y)
	if p.Ticks != nil {
		var marks plot.ConstantTicks
		for _, t := range p.Ticks {
			// The axis reaches its outermost marks even if no line does.
			drawn.X.Min, drawn.X.Max = min(drawn.X.Min, t), max(drawn.X.Max, t)
			marks = append(marks, plot.Tick{Value: t, Label: strconv.FormatFloat(t, 'g', 4, 64)})
		}
		drawn.X.Tick.Marker = marks
	}
	return drawn, nil
}

// WriteFigure draws panels side by side as a PNG. The lines of panels without a legend of their
// own are in one to the right; they are taken to be the same in all of them.
func WriteFigure(w io.Writer, panels []Panel) error {
	return write(w, panels, func(width, height vg.Length) vg.CanvasWriterTo {
		return vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(110))}
	})
}

// WriteSVG draws the same as [WriteFigure] as an SVG, in which text stays text.
func WriteSVG(w io.Writer, panels []Panel) error {
	return write(w, panels, func(width, height vg.Length) vg.CanvasWriterTo { return vgsvg.New(width, height) })
}

// write draws panels on a canvas and writes that.
func write(w io.Writer, panels []Panel, canvas func(width, height vg.Length) vg.CanvasWriterTo) error {
	const width, height, gap = 4.6 * vg.Inch, 4.2 * vg.Inch, 14
	row := make([]*plot.Plot, len(panels))
	common, right := plot.NewLegend(), vg.Length(0)
	common.Padding, common.Top, common.Left, common.YOffs = vg.Points(2), true, true, -vg.Points(30)
	for i := range panels {
		var legend *plot.Legend
		if right == 0 {
			legend = &common
		}
		p, err := panels[i].plot(legend)
		if err != nil {
			return err
		}
		row[i] = p
		// The first panel without a legend has filled the common one, whose width is known now.
		if right == 0 && !panels[i].Legend {
			right = common.Rectangle(draw.Canvas{}).Size().X + vg.Points(gap)
		}
	}
	image := canvas(width*vg.Length(len(panels))+right, height)
	all := draw.New(image)
	tiles := draw.Tiles{
		Rows: 1, Cols: len(panels), PadX: vg.Points(gap),
		PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(12),
	}
	for i, canvas := range plot.Align([][]*plot.Plot{row}, tiles, draw.Crop(all, 0, -right, 0, 0))[0] {
		row[i].Draw(canvas)
	}
	common.Draw(draw.Crop(all, all.Max.X-right, 0, 0, 0))
	if _, err := image.WriteTo(w); err != nil {
		return fmt.Errorf("writing a plot: %w", err)
	}
	return nil
}
