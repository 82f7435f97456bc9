//go:build !amd64

package vector

import "github.com/psidecar/psidecar/proxy/codec/element"

// Without assembly nothing is done here, and everything by the portable code.

func addFloat32(_ []float32, _ []byte, _ float32, _ []uint64, at []uint32, _ int) ([]uint32, int) {
	return at, 0
}

func addFloat16(_ []float32, _ []byte, _ float32, _ []uint64, at []uint32, _ int) ([]uint32, int) {
	return at, 0
}

func addBFloat16(_ []float32, _ []byte, _ float32, _ []uint64, at []uint32, _ int) ([]uint32, int) {
	return at, 0
}

func addFloat64(_ []float64, _ []byte, _ float64, _ []uint64, at []uint32, _ int) ([]uint32, int) {
	return at, 0
}

func subtractFloat32(_ []float32, _, _ []byte, _ float32, _ []uint64, at []uint32, _ int) ([]uint32, int) {
	return at, 0
}

func maxMagnitude([]byte, int) (done int, most uint64) { return 0, 0 }

func quantize(_, _ []byte, _ int, _ rounding, _ Random, _ uint32) int { return 0 }

func nearest(_, _ []byte, _ int, _ rounding) int { return 0 }

func dequantize(element.Kind, []byte, []byte, int, float64, float32) int { return 0 }

func differ4(_, _ []byte, _ []uint64) int { return 0 }

func roundToFloat16([]byte, []float32) (done, nonFinite int) { return 0, 0 }

func roundToBFloat16([]byte, []float32) (done, nonFinite int) { return 0, 0 }

func fromFloat16(_, _ []byte) int { return 0 }

func fromBFloat16(_, _ []byte) int { return 0 }

func sumFloat(element.Kind, []byte, []byte) int { return 0 }

func sumInt(int, []byte, []byte) int { return 0 }

func scale32([]byte) (done int, sum float32, most uint32) { return 0, 0, 0 }

func countAbove32([]byte, uint32) (done, count int) { return 0, 0 }

func maskAbove32([]uint64, int, []byte, uint32) (done int) { return 0 }
