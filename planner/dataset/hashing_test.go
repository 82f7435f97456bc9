package dataset

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

func TestNewRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    HashOptions
		want string
	}{
		{"no bins", HashOptions{}, "0 hash bins: use 1 to"},
		{"too many bins", HashOptions{Bins: MaxHashBins + 1}, "hash bins: use 1 to"},
		{"too many bits", HashOptions{Bins: 1, Bits: 33}, "33 hash bits: use 1 to 32"},
		{"negative bits", HashOptions{Bins: 1, Bits: -1}, "-1 hash bits"},
		{"unknown scheme", HashOptions{Bins: 1, Scheme: 7}, "unknown hashing scheme 7"},
	} {
		if _, err := NewHasher(tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q in it", tc.name, err, tc.want)
		}
	}
	if _, err := ParseHashScheme("md5"); err == nil || !strings.Contains(err.Error(), "use oph or bcws") {
		t.Errorf("ParseScheme: got %v", err)
	}
}

func TestAppendRefuses(t *testing.T) {
	h := require.Value(NewHasher(HashOptions{Scheme: BCWS, Bins: 4}))(t)
	nan := float32(math.NaN())
	for _, values := range [][]float32{{1, -1}, {1, nan}, {1, float32(math.Inf(1))}, {1}} {
		if _, err := h.Append(nil, []uint64{5, 6}, values); err == nil {
			t.Errorf("values %v were taken", values)
		}
	}
	// The hasher is unharmed.
	if out, err := h.Append(nil, []uint64{5, 6}, []float32{1, 2}); err != nil || len(out) != 4 {
		t.Errorf("after refusals: %v, %v", out, err)
	}
}

func TestEmptyRows(t *testing.T) {
	for _, scheme := range []HashScheme{OPH, BCWS} {
		h := require.Value(NewHasher(HashOptions{Scheme: scheme, Bins: 4}))(t)
		if out, err := h.Append(nil, nil, nil); err != nil || len(out) != 0 {
			t.Errorf("%v: an empty row became %v, %v", scheme, out, err)
		}
	}
	h := require.Value(NewHasher(HashOptions{Scheme: BCWS, Bins: 4}))(t)
	if out, err := h.Append(nil, []uint64{1}, []float32{0}); err != nil || len(out) != 0 {
		t.Errorf("a row of zeros became %v, %v", out, err)
	}
}

// rows draws a row of distinct ids with values.
func rows() *rapid.Generator[row] {
	return rapid.Custom(func(t *rapid.T) row {
		ids := rapid.SliceOfNDistinct(rapid.Uint64(), 1, 40, rapid.ID).Draw(t, "ids")
		values := rapid.SliceOfN(rapid.Float32Range(0.001, 1000), len(ids), len(ids)).Draw(t, "values")
		return row{ids, values}
	})
}

func TestAppendProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := HashOptions{
			Scheme: HashScheme(rapid.IntRange(0, 1).Draw(t, "scheme")),
			Bins:   rapid.IntRange(1, 70).Draw(t, "bins"),
			Bits:   rapid.IntRange(1, 20).Draw(t, "bits"),
			Seed:   rapid.Uint64().Draw(t, "seed"),
		}
		h := require.Value(NewHasher(o))(t)
		r := rows().Draw(t, "row")
		out := require.Value(h.Append(nil, r.ids, r.values))(t)
		if len(out) != o.Bins || !slices.IsSorted(out) || out[0] < 1 || out[len(out)-1] > uint64(o.Bins)<<o.Bits {
			t.Fatalf("not one ascending feature a bin: %v", out)
		}
		for b, id := range out {
			if (id-1)>>o.Bits != uint64(b) {
				t.Fatalf("feature %d does not belong to bin %d", id, b)
			}
			if s := h.sample[b]; !slices.Contains(r.ids, s.id) {
				t.Fatalf("bin %d drew %d, which is not in the row", b, s.id)
			}
		}
		// The order of a row's features does not matter, nor what the hasher
		// saw before.
		slices.Reverse(r.ids)
		slices.Reverse(r.values)
		again, err := h.Clone().Append(nil, r.ids, r.values)
		if err != nil || !slices.Equal(out, again) {
			t.Fatalf("reversed, the row became %v, %v, not %v", again, err, out)
		}
	})
}
