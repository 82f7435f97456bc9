package vector

import (
	"encoding/binary"
	"math"
)

// SubtractFloat32 sets d to the differences x - w of float32 numbers, sets mask, and
// appends to at as [AddFloat32] does for the differences. The three have the same number of
// numbers.
func SubtractFloat32(d []float32, x, w []byte, tau float32, mask []uint64, at []uint32, first int) []uint32 {
	at, done := subtractFloat32(d, x, w, tau, mask, at, first)
	return subtractPortable(d[done:], x[4*done:], w[4*done:], tau, mask[done/64:], at, first+done)
}

func subtractPortable(d []float32, x, w []byte, tau float32, mask []uint64, at []uint32, first int) []uint32 {
	for i := range d {
		d[i] = math.Float32frombits(binary.LittleEndian.Uint32(x[4*i:])) - math.Float32frombits(binary.LittleEndian.Uint32(w[4*i:]))
	}
	return Compare(d, tau, mask, at, first)
}
