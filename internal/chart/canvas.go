package chart

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
)

const (
	textSize = 13 // pixels
	// LineHeight is the distance between lines of text, in pixels.
	LineHeight = 18
)

// A Canvas is a picture in pixels, whose point (0, 0) is at the top left. It is used by one
// goroutine.
type Canvas struct {
	*image.RGBA
	face font.Face
}

// NewCanvas returns a canvas without an area, which can measure text; see [Canvas.SetSize].
func NewCanvas() (*Canvas, error) {
	parsed, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, fmt.Errorf("reading the font: %w", err)
	}
	face, err := opentype.NewFace(parsed, &opentype.FaceOptions{Size: textSize, DPI: 72, Hinting: font.HintingFull})
	if err != nil {
		return nil, fmt.Errorf("reading the font: %w", err)
	}
	return &Canvas{image.NewRGBA(image.Rectangle{}), face}, nil
}

// SetSize makes the canvas a white area.
func (c *Canvas) SetSize(width, height int) {
	c.RGBA = image.NewRGBA(image.Rect(0, 0, width, height))
	c.Fill(c.Rect, color.White)
}

// WritePNG encodes the picture.
func (c *Canvas) WritePNG(w io.Writer) error {
	if err := png.Encode(w, c.RGBA); err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	return nil
}

// Fill paints a rectangle.
func (c *Canvas) Fill(r image.Rectangle, ink color.Color) {
	draw.Draw(c.RGBA, r, image.NewUniform(ink), image.Point{}, draw.Src)
}

// The part of a text that lies before the point where it is put.
const (
	Left   = 0.0
	Centre = 0.5
	Right  = 1.0
)

// TextWidth returns the width of a text.
func (c *Canvas) TextWidth(text string) int { return font.MeasureString(c.face, text).Ceil() }

// Text writes a line whose middle is at the height y.
func (c *Canvas) Text(x, y int, align float64, text string) {
	c.writeLine(c.RGBA, x-int(align*float64(c.TextWidth(text))), y, text)
}

func (c *Canvas) writeLine(to draw.Image, x, y int, text string) {
	d := font.Drawer{Dst: to, Src: image.Black, Face: c.face, Dot: fixed.P(x, y+textSize*2/5)}
	d.DrawString(text)
}
