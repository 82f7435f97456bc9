// Package chart draws what commands write as PNG, on a [Canvas] and in a [Frame]. The evaluation's
// figures are drawn by a plot library, which would be a tenth of the program.
package chart

import (
	"image"
	"image/color"
)

// A Tick is a mark of an axis.
type Tick struct {
	Value float64
	Label string
}

// A Frame is what surrounds a diagram. Both axes begin at 0.
type Frame struct {
	Title, X       string
	MaxX, MaxY     float64 // the axes' ends; above 0
	XTicks, YTicks []Tick
}

// gap is the distance between parts of a frame.
const gap = 6

// widest returns the width of the widest label.
func (c *Canvas) widest(ticks []Tick) int {
	most := 0
	for _, t := range ticks {
		most = max(most, c.TextWidth(t.Label))
	}
	return most
}

// margins returns how much room the frame takes around its diagram: at the left and above as Min,
// at the right and below as Max.
func (f *Frame) margins(c *Canvas) image.Rectangle {
	lines := func(text string) int { return LineHeight * min(len(text), 1) }
	return image.Rectangle{
		image.Pt(gap+c.widest(f.YTicks)+2*gap, gap+lines(f.Title)+gap),
		image.Pt(3*gap, gap+LineHeight+lines(f.X)+gap),
	}
}

// Draw draws the frame into a part of the canvas, and returns where its diagram is.
func (f *Frame) Draw(c *Canvas, within image.Rectangle) image.Rectangle {
	around := f.margins(c)
	area := image.Rectangle{within.Min.Add(around.Min), within.Max.Sub(around.Max)}
	middle := area.Min.Add(area.Max).Div(2)
	c.Text(middle.X, within.Min.Y+gap+LineHeight/2, Centre, f.Title)
	c.Text(middle.X, within.Max.Y-gap-LineHeight/2, Centre, f.X)
	axis := func(x0, y0, x1, y1 int) { c.Fill(image.Rect(x0, y0, x1, y1), color.Black) }
	for _, t := range f.YTicks {
		y := int(f.PlaceY(area, t.Value))
		axis(area.Min.X-gap, y, area.Min.X, y+1)
		c.Text(area.Min.X-gap-gap/2, y, Right, t.Label)
	}
	for _, t := range f.XTicks {
		x := int(f.PlaceX(area, t.Value))
		axis(x, area.Max.Y, x+1, area.Max.Y+gap/2)
		c.Text(x, area.Max.Y+gap+LineHeight/2, Centre, t.Label)
	}
	axis(area.Min.X-1, area.Min.Y, area.Min.X, area.Max.Y+1)
	axis(area.Min.X-1, area.Max.Y, area.Max.X, area.Max.Y+1)
	return area
}

// PlaceX returns where a value of the x axis is.
func (f *Frame) PlaceX(area image.Rectangle, x float64) float32 {
	return float32(float64(area.Min.X) + x/f.MaxX*float64(area.Dx()))
}

// PlaceY returns where a value of the y axis is.
func (f *Frame) PlaceY(area image.Rectangle, y float64) float32 {
	return float32(float64(area.Max.Y) - y/f.MaxY*float64(area.Dy()))
}
