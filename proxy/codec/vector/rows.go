package vector

import (
	"encoding/binary"
	"math"
)

// unsigned masks all bits of a float32 except its sign.
const unsigned = 1<<31 - 1

// Scale32 returns the sum of the magnitudes of float32 numbers, added in an order that
// depends on the processor, so that only guesses may be made from it, and the bits of the
// largest magnitude. The bits are ordered as the magnitudes, NaNs after infinity.
func Scale32(values []byte) (sum float32, most uint32) {
	done, sum, most := scale32(values)
	for values = values[4*done:]; len(values) >= 4; values = values[4:] {
		m := binary.LittleEndian.Uint32(values) & unsigned
		sum += math.Float32frombits(m)
		most = max(most, m)
	}
	return sum, most
}

// CountFrom32 returns how many float32 numbers have a magnitude whose bits are at least
// least, which is between 1 and 2^31 - 1.
func CountFrom32(values []byte, least uint32) int {
	done, n := countAbove32(values, least-1)
	for values = values[4*done:]; len(values) >= 4; values = values[4:] {
		n += int(from32(binary.LittleEndian.Uint32(values), least))
	}
	return n
}

// MaskFrom32 sets those bits of mask, from bit first on, that belong to the numbers that
// [CountFrom32] counts. All of these bits must be clear before.
func MaskFrom32(mask []uint64, first int, values []byte, least uint32) {
	done := maskAbove32(mask, first, values, least-1)
	first, values = first+done, values[4*done:]
	for ; len(values) >= 4; values = values[4:] {
		mask[first/64] |= uint64(from32(binary.LittleEndian.Uint32(values), least)) << (first % 64)
		first++
	}
}

// from32 is 1 for a magnitude that is not below least, otherwise 0, without a branch.
func from32(number, least uint32) uint32 {
	return (least - 1 - number&unsigned) >> 31 // both are less than 2^31
}
