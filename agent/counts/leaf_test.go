package counts

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A leaf finds the places of the keys that it knows, and which it does not know,
// whether its keys are spread evenly, nearly so or not at all.
func TestFindPlacesOfKnownAndUnknownKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, leafKeys).Draw(t, "n")
		step := rapid.SampledFrom([]uint64{1, 3, 1000, math.MaxUint64 / leafKeys}).Draw(t, "step")
		first := rapid.SampledFrom([]uint64{0, 7, math.MaxUint64 - step*uint64(n-1)}).Draw(t, "first")
		off := rapid.SampledFrom([]uint64{0, 1, step / 2, 3 * step}).Draw(t, "off") // the line, at most
		known := make([]uint64, 0, n)
		for i := range n {
			k := first + uint64(i)*step
			if off > 0 && k >= off {
				k -= rapid.Uint64Range(0, off).Draw(t, "off the line")
			}
			known = append(known, k)
		}
		slices.Sort(known)
		known = slices.Compact(known)
		var keys []uint64
		for range rapid.IntRange(1, 80).Draw(t, "asked") {
			k := known[rapid.IntRange(0, len(known)-1).Draw(t, "place")]
			keys = append(keys, k+rapid.SampledFrom([]uint64{0, 0, 0, 1, step / 2, math.MaxUint64}).Draw(t, "beside"))
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		var wantFound, wantMissing []int32
		for i, k := range keys {
			if at, ok := slices.BinarySearch(known, k); ok {
				wantFound = append(wantFound, int32(at))
			} else {
				wantMissing = append(wantMissing, int32(i))
			}
		}
		l := &leaf{n: len(known), keys: known}
		found, missing := l.find(keys, nil, nil)
		if !slices.Equal(found, wantFound) || !slices.Equal(missing, wantMissing) {
			t.Fatalf("%d of %d: found %d, missing %d, want %d and %d", keys, known, found, missing, wantFound, wantMissing)
		}
	})
}
