package vector

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What rows are searched by is what one number after the other says: any lengths and
// places in the mask, magnitudes at the threshold and beside it, numbers that are not
// finite.
func TestRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 150).Draw(t, "n")
		least := rapid.Uint32Range(1, unsigned).Draw(t, "least")
		values := []byte{1}[:rapid.IntRange(0, 1).Draw(t, "unaligned")]
		odd := len(values)
		numbers := make([]uint32, n)
		for i := range numbers {
			numbers[i] = rapid.OneOf(rapid.Uint32(), rapid.SampledFrom([]uint32{least, least - 1, least + 1, least | 1<<31, 0, 1 << 31, 0x7f800000, 0x7fc00000})).Draw(t, "number")
			values = binary.LittleEndian.AppendUint32(values, numbers[i])
		}
		values = values[odd:]
		count, most := 0, uint32(0)
		first := rapid.IntRange(0, 130).Draw(t, "first")
		mask, want := make([]uint64, (first+n)/64+1), make([]uint64, (first+n)/64+1)
		for i, v := range numbers {
			m := v &^ (1 << 31)
			most = max(most, m)
			if m >= least {
				count++
				want[(first+i)/64] |= 1 << ((first + i) % 64)
			}
		}
		if got := CountFrom32(values, least); got != count {
			t.Errorf("%d from %#x on, want %d", got, least, count)
		}
		if MaskFrom32(mask, first, values, least); !slices.Equal(mask, want) {
			t.Errorf("mask %x, want %x", mask, want)
		}
		if _, got := Scale32(values); got != most {
			t.Errorf("the largest is %#x, want %#x", got, most)
		}
	})
}

// The sum is that of the magnitudes, within its precision.
func TestScale32(t *testing.T) {
	var values []byte
	want := 0.0
	for i := range 101 {
		v := float32(i) * 0.1
		if i%3 == 0 {
			v = -v
		}
		want += math.Abs(float64(v))
		values = binary.LittleEndian.AppendUint32(values, math.Float32bits(v))
		if got, _ := Scale32(values); math.Abs(float64(got)-want) > 1e-5*want {
			t.Fatalf("%d numbers: %v, want %v", i+1, got, want)
		}
	}
}
