package draw

import (
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"

	"golang.org/x/image/font"
	"golang.org/x/image/font/basicfont"
	"golang.org/x/image/math/fixed"

	"github.com/psidecar/psidecar/agent/web"
)

// Sizes in pixels.
const (
	margin     = 12
	lineHeight = 16
	charWidth  = 7
	plotWidth  = 1024
)

// PNG writes the heatmap as an image: a row for each worker, a column for each
// block, with names, the range of keys and the scale.
func PNG(out io.Writer, h web.Heatmap) error {
	label := len("worker")
	for _, name := range h.Workers {
		label = max(label, len(name))
	}
	rowHeight := min(max(480/max(len(h.Workers), 1), 1), 28)
	left, top := 2*margin+label*charWidth, 2*margin+lineHeight
	counts, columns := squeeze(h.Counts, len(h.Blocks), plotWidth)
	cellWidth := plotWidth / max(columns, 1)
	height := top + rowHeight*len(h.Workers) + 3*lineHeight + 2*margin
	img := image.NewRGBA(image.Rect(0, 0, left+cellWidth*columns+2*margin, height))
	fill(img, img.Bounds(), color.RGBA{255, 255, 255, 255})
	write(img, margin, margin+lineHeight, fmt.Sprintf("%s: %s by worker and key", h.Job, h.Measure))
	most := highest(counts)
	for i, row := range counts {
		y := top + i*rowHeight
		if rowHeight >= lineHeight-4 {
			write(img, margin, y+(rowHeight+9)/2, h.Workers[i])
		}
		for b, n := range row {
			fill(img, image.Rect(left+b*cellWidth, y, left+(b+1)*cellWidth, y+rowHeight), colourOf(heat(n, most)))
		}
	}
	y := top + rowHeight*len(h.Workers) + lineHeight
	if len(h.Blocks) > 0 {
		last := h.Blocks[len(h.Blocks)-1].LastText
		write(img, left, y, "key "+h.Blocks[0].FirstText)
		write(img, left+cellWidth*columns-len(last)*charWidth, y, last)
	}
	y += lineHeight
	write(img, margin, y+10, "0")
	for i := range 128 {
		fill(img, image.Rect(left+2*i, y, left+2*i+2, y+lineHeight-2), colourOf(float64(i)/127))
	}
	write(img, left+264, y+10, fmt.Sprintf("%d (logarithmic)", most))
	if err := png.Encode(out, img); err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	return nil
}

func fill(img *image.RGBA, r image.Rectangle, c color.RGBA) {
	r = r.Intersect(img.Bounds())
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			img.SetRGBA(x, y, c)
		}
	}
}

func write(img *image.RGBA, x, y int, text string) {
	d := font.Drawer{Dst: img, Src: image.Black, Face: basicfont.Face7x13, Dot: fixed.P(x, y)}
	d.DrawString(text)
}
