package draw

import (
	"cmp"
	"fmt"
	"image"
	"image/color"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/psidecar/psidecar/internal/chart"
	"github.com/psidecar/psidecar/internal/page"
)

// Dimensions of the image, in pixels.
const (
	pngWidth  = 1152
	rowsHigh  = 480 // height of all rows together, at most
	rowMost   = 28
	framing   = 84 // title and key names
	keyHeight = 40
	// namedRows bounds the rows with names beside them.
	namedRows = 40
)

// PNG writes the heatmap as an image, with a row for each worker or stretch of time and a
// column for each block, names, the range of keys, and the scale.
func PNG(out io.Writer, h page.Heatmap) error {
	c, err := chart.NewCanvas()
	if err != nil {
		return err
	}
	sc, inks := ScaleOf(h.Counts), ScaleColours(false)
	by, names := rowsOf(&h)
	// Few rows are drawn as bands of a bearable height rather than stretched to the whole
	// image.
	rows := min(rowsHigh, rowMost*max(len(names), 1))
	c.SetSize(pngWidth, rows+framing+keyHeight)
	if len(names) == 0 || len(h.Blocks) == 0 {
		c.Text(pngWidth/2, chart.LineHeight, chart.Centre, fmt.Sprintf("%s: no counts yet", h.Job))
	} else {
		f := chart.Frame{Title: title(&h, by), X: "first key of the block", MaxX: float64(len(h.Blocks)), MaxY: float64(len(names)),
			XTicks: keyTicks(h.Blocks), YTicks: rowTicks(names)}
		if len(named(h.Blocks)) > 0 {
			f.X = "what the keys of the block are called, or the first of them"
		}
		area := f.Draw(c, image.Rect(0, 0, pngWidth, rows+framing))
		cells(c, area, &h, sc, inks)
	}
	legend(c, sc, inks)
	return c.WritePNG(out)
}

// cells draws the counts. Where there are more columns or rows than pixels, a pixel shows the
// highest count of those that it stands for.
func cells(c *chart.Canvas, area image.Rectangle, h *page.Heatmap, sc Scale, inks [ScaleLevels]color.RGBA) {
	counts, columns := squeeze(h.Counts, len(h.Blocks), area.Dx())
	each := (len(counts) + area.Dy() - 1) / area.Dy()
	joined := counts[:0]
	for y, row := range counts {
		if y%each == 0 {
			joined = append(joined, row)
			continue
		}
		above := joined[len(joined)-1]
		for x, n := range row {
			above[x] = max(above[x], n)
		}
	}
	counts = joined
	for y, row := range counts {
		top, bottom := area.Min.Y+y*area.Dy()/len(counts), area.Min.Y+(y+1)*area.Dy()/len(counts)
		for x, n := range row {
			c.Fill(image.Rect(area.Min.X+x*area.Dx()/columns, top, area.Min.X+(x+1)*area.Dx()/columns, bottom), inks[sc.Level(float64(n))])
		}
	}
}

// keyTicks labels as many blocks as fit beside each other.
func keyTicks(blocks []page.Block) []chart.Tick {
	longest := 0
	for i := range blocks {
		longest = max(longest, utf8.RuneCountInString(blockLabel(&blocks[i])))
	}
	// The image has room for about 100 characters in a line.
	n := max(min(100/(longest+2), len(blocks)), 1)
	var ticks []chart.Tick
	for i := range n {
		at := i * len(blocks) / n
		ticks = append(ticks, chart.Tick{Value: float64(at) + 0.5, Label: blockLabel(&blocks[at])})
	}
	return ticks
}

// blockLabel returns a block's name or first key, shortened.
func blockLabel(b *page.Block) string {
	return shorten(cmp.Or(b.Name, b.FirstText))
}

// shorten returns a text of at most 32 letters.
func shorten(text string) string {
	const most = 32
	if r := []rune(text); len(r) > most {
		text = string(r[:most-1]) + "…"
	}
	return text
}

// rowTicks labels the rows, top row first; some of them if there are many.
func rowTicks(names []string) []chart.Tick {
	each := (len(names) + namedRows - 1) / namedRows
	var ticks []chart.Tick
	for i := 0; i < len(names); i += each {
		ticks = append(ticks, chart.Tick{Value: float64(len(names)-i) - 0.5, Label: shorten(names[i])})
	}
	return ticks
}

// legend draws the scale's marks and their colours.
func legend(c *chart.Canvas, sc Scale, inks [ScaleLevels]color.RGBA) {
	const side, gap = 14, 6
	x, y := 2*gap, c.Rect.Max.Y-keyHeight/2
	marks := sc.Marks()
	for i, mark := range marks {
		text := strconv.FormatFloat(mark, 'f', 0, 64)
		if i == len(marks)-1 {
			text += "  (logarithmic)"
		}
		box := image.Rect(x, y-side/2, x+side, y+side/2)
		c.Fill(box, color.Gray{180})
		c.Fill(box.Inset(1), inks[sc.Level(mark)])
		c.Text(x+side+gap, y, chart.Left, text)
		x += side + gap + c.TextWidth(text) + 3*gap
	}
}
