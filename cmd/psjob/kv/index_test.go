package kv

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestNumbersLikeAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x StoreIndex
		want := make(map[uint64]uint32)
		for range rapid.IntRange(1, 20).Draw(t, "lists") {
			keys := rapid.SliceOf(rapid.OneOf(
				rapid.Uint64Range(0, 40), rapid.Uint64Range(math.MaxUint64-5, math.MaxUint64), rapid.Uint64(),
			)).Draw(t, "keys")
			got := make([]uint32, len(keys))
			x.Numbers(keys, got)
			for i, key := range keys {
				n, ok := want[key]
				if !ok {
					n = uint32(len(want))
					want[key] = n
				}
				if got[i] != n {
					t.Fatalf("key %d has number %d, want %d", key, got[i], n)
				}
				if f, ok := x.Find(key); !ok || f != n {
					t.Fatalf("Find(%d) = %d, %v; want %d", key, f, ok, n)
				}
			}
		}
		if x.Len() != len(want) {
			t.Fatalf("%d keys, want %d", x.Len(), len(want))
		}
		stranger := rapid.Uint64().Draw(t, "stranger")
		if _, known := want[stranger]; !known {
			if n, ok := x.Find(stranger); ok {
				t.Fatalf("Find of an unknown key %d = %d", stranger, n)
			}
		}
	})
}
