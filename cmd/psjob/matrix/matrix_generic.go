//go:build !amd64

package matrix

func dotsVector(sums *[lanes]float32, _, _ []float32) int {
	*sums = [lanes]float32{}
	return 0
}

func combineVector([]float32, *[lanes]float32, []float32) int { return 0 }
