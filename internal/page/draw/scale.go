package draw

import (
	_ "embed" // scale.json
	"encoding/json"
	"image/color"
	"math"
	"slices"
)

// definition is the file that the page is built from, too.
//
//go:embed scale.json
var definition []byte

// ScaleLevels is the number of colours: 0 is for nothing, the last for the largest count.
const ScaleLevels = 256

// figures are the parameters in scale.json.
type figures struct {
	Light [][3]uint8 `json:"light"` // colours on a light background, from nothing to the most
	Dark  [][3]uint8 `json:"dark"`
	First int        `json:"first"` // level of the smallest count, clearly different from 0
	Ratio float64    `json:"ratio"` // least ratio of the scale's ends
}

// known are the parsed parameters.
var known = parse()

// parse decodes the embedded file.
func parse() (f figures) {
	if err := json.Unmarshal(definition, &f); err != nil {
		panic(err) // it is embedded above
	}
	return f
}

// A Scale maps counts to levels.
type Scale struct {
	Low, Most float64 // both 0 if nothing was counted
}

// ScaleOf returns the scale for the cells of a heatmap.
func ScaleOf(counts [][]uint64) Scale {
	least, most := uint64(math.MaxUint64), uint64(0)
	for _, row := range counts {
		for _, n := range row {
			most = max(most, n)
			if n > 0 {
				least = min(least, n)
			}
		}
	}
	return ScaleBetween(float64(least), float64(most))
}

// ScaleBetween returns the scale for counts between least, the smallest above 0, and most.
func ScaleBetween(least, most float64) Scale {
	if most == 0 {
		return Scale{}
	}
	return Scale{min(least, most/known.Ratio), most}
}

// Level returns the colour of a count: 0 for nothing, ScaleLevels-1 for the largest.
func (s Scale) Level(n float64) int {
	switch {
	case n <= 0:
		return 0
	case n >= s.Most:
		return ScaleLevels - 1
	}
	// Counts below Low, which only a mark can be, have the colour of the smallest count.
	share := math.Log(max(n, s.Low)/s.Low) / math.Log(s.Most/s.Low)
	return known.First + int(float64(ScaleLevels-2-known.First)*share)
}

// Marks returns the counts to label in the legend: 0, then from the low end to the most in
// equal ratios, without duplicates.
func (s Scale) Marks() []float64 {
	const steps = 4
	marks := []float64{0}
	for i := 0; i <= steps && s.Most > 0; i++ {
		n := s.Most
		if i < steps {
			n = math.Round(s.Low * math.Pow(s.Most/s.Low, float64(i)/steps))
		}
		if n > marks[len(marks)-1] {
			marks = append(marks, n)
		}
	}
	return slices.Clip(marks)
}

// ScaleColours returns the colours of all levels, for a light or a dark background. Their
// lightness is monotonic, so that they can be told apart without colour vision.
func ScaleColours(dark bool) [ScaleLevels]color.RGBA {
	stops := known.Light
	if dark {
		stops = known.Dark
	}
	var out [ScaleLevels]color.RGBA
	for i := range out {
		at := float64(i) / (ScaleLevels - 1) * float64(len(stops)-1)
		low := min(int(at), len(stops)-2)
		mix := func(c int) uint8 {
			from, to := float64(stops[low][c]), float64(stops[low+1][c])
			return uint8(math.Floor(from + (to-from)*(at-float64(low)) + 0.5)) // as JavaScript rounds
		}
		out[i] = color.RGBA{mix(0), mix(1), mix(2), 255}
	}
	return out
}
