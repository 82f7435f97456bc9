package draw

import (
	"fmt"
	"image"
	"image/color"
	paint "image/draw"
	"io"
	"strconv"
	"unicode/utf8"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/psidecar/psidecar/page"
)

// Dimensions of the image.
const (
	pngWidth  = 12 * vg.Inch
	rowsHigh  = 5 * vg.Inch // height of all rows together, at most
	rowMost   = 28 * vg.Inch / vgimg.DefaultDPI
	framing   = 1.1 * vg.Inch // title and key names
	keyHeight = 0.45 * vg.Inch
	// namedRows bounds the rows with names beside them.
	namedRows = 40
)

// PNG writes the heatmap as an image, with a row for each worker or stretch of time and a
// column for each block, names, the range of keys, and the scale.
func PNG(out io.Writer, h page.Heatmap) error {
	sc, inks := ScaleOf(h.Counts), ScaleColours(false)
	p := plot.New()
	by, names := rowsOf(&h)
	p.Title.Text = title(&h, by)
	// Few rows are drawn as bands of a bearable height rather than stretched to the whole
	// image.
	rows := min(rowsHigh, rowMost*vg.Length(max(len(names), 1)))
	if len(names) == 0 || len(h.Blocks) == 0 {
		p.Title.Text = fmt.Sprintf("%s: no counts yet", h.Job)
		p.HideAxes()
	} else {
		cells := plotter.NewImage(picture(h, sc, inks), 0, 0, float64(len(h.Blocks)), float64(len(names)))
		p.Add(cells)
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, float64(len(h.Blocks)), 0, float64(len(names))
		p.X.Padding, p.Y.Padding = 0, 0
		p.X.Label.Text = "first key of the block"
		if len(named(h.Blocks)) > 0 {
			p.X.Label.Text = "what the keys of the block are called, or the first of them"
		}
		p.X.Tick.Marker, p.Y.Tick.Marker = keyTicks(h.Blocks), rowTicks(names)
	}
	canvas := vgimg.New(pngWidth, rows+framing+keyHeight)
	all := draw.New(canvas)
	p.Draw(draw.Crop(all, vg.Points(6), -vg.Points(24), keyHeight, -vg.Points(6)))
	legend(draw.Crop(all, vg.Points(12), 0, vg.Points(8), 0), sc, inks)
	if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(out); err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	return nil
}

// picture draws the cells with many pixels each, because the plot library interpolates between
// pixels.
func picture(h page.Heatmap, sc Scale, inks [ScaleLevels]color.RGBA) image.Image {
	counts, columns := squeeze(h.Counts, len(h.Blocks), 1536)
	// Enough pixels for each cell that interpolation shows at its edges only.
	wide, high := 1+1024/columns, 1+512/len(h.Counts)
	img := image.NewRGBA(image.Rect(0, 0, wide*columns, high*len(h.Counts)))
	for y, row := range counts {
		for x, n := range row {
			cell := image.Rect(x*wide, y*high, (x+1)*wide, (y+1)*high)
			paint.Draw(img, cell, image.NewUniform(inks[sc.Level(float64(n))]), image.Point{}, paint.Src)
		}
	}
	return img
}

// keyTicks labels as many blocks as fit beside each other.
func keyTicks(blocks []page.Block) plot.ConstantTicks {
	longest := 0
	for i := range blocks {
		longest = max(longest, utf8.RuneCountInString(blockLabel(&blocks[i])))
	}
	// The image has room for about 100 characters in a line.
	n := max(min(100/(longest+2), len(blocks)), 1)
	var ticks plot.ConstantTicks
	for i := range n {
		at := i * len(blocks) / n
		ticks = append(ticks, plot.Tick{Value: float64(at) + 0.5, Label: blockLabel(&blocks[at])})
	}
	return ticks
}

// blockLabel returns a block's name or first key, shortened.
func blockLabel(b *page.Block) string {
	const most = 32
	text := b.Name
	if text == "" {
		text = b.FirstText
	}
	if r := []rune(text); len(r) > most {
		text = string(r[:most-1]) + "…"
	}
	return text
}

// rowTicks labels the rows, top row first; some of them if there are many.
func rowTicks(names []string) plot.ConstantTicks {
	each := (len(names) + namedRows - 1) / namedRows
	var ticks plot.ConstantTicks
	for i := 0; i < len(names); i += each {
		ticks = append(ticks, plot.Tick{Value: float64(len(names)-i) - 0.5, Label: names[i]})
	}
	return ticks
}

// legend draws the scale's marks and their colours.
func legend(c draw.Canvas, sc Scale, inks [ScaleLevels]color.RGBA) {
	style := plot.New().X.Tick.Label
	style.XAlign, style.YAlign = draw.XLeft, draw.YBottom
	side, x := vg.Points(11), c.Min.X
	marks := sc.Marks()
	for i, mark := range marks {
		text := strconv.FormatFloat(mark, 'f', 0, 64)
		if i == len(marks)-1 {
			text += "  (logarithmic)"
		}
		box := []vg.Point{{X: x, Y: c.Min.Y}, {X: x + side, Y: c.Min.Y}, {X: x + side, Y: c.Min.Y + side}, {X: x, Y: c.Min.Y + side}}
		c.FillPolygon(inks[sc.Level(mark)], box)
		c.StrokeLines(draw.LineStyle{Color: color.Gray{180}, Width: vg.Points(0.5)}, append(box, box[0]))
		c.FillText(style, vg.Point{X: x + side + vg.Points(4), Y: c.Min.Y + vg.Points(1)}, text)
		x += side + vg.Points(4) + style.Width(text) + vg.Points(14)
	}
}
