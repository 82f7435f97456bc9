//go:build !amd64

package vector

// Without assembly nothing is done here and all by the portable code.

func addFloat32([]float32, []byte, float32, []uint64) int           { return 0 }
func addFloat16([]float32, []byte, float32, []uint64) int           { return 0 }
func addBFloat16([]float32, []byte, float32, []uint64) int          { return 0 }
func addFloat64([]float64, []byte, float64, []uint64) int           { return 0 }
func addFloat32To64([]float64, []byte, float64, []uint64) int       { return 0 }
func compareFloat32([]float32, float32, []uint64) int               { return 0 }
func compareFloat64([]float64, float64, []uint64) int               { return 0 }
func maxMagnitude([]byte) (done int, bits uint32)                   { return 0, 0 }
func quantize([]byte, []byte, float32, float32, Random, uint32) int { return 0 }
func dequantize([]byte, []byte, float32, int) int                   { return 0 }
func differ4(a, b []byte, mask []uint64) int                        { return 0 }
func differ8(a, b []byte, mask []uint64) int                        { return 0 }
