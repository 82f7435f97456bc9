package plan

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// Each part's key is at home where the part is, and says whose part it is.
func TestPartKeysAreFoundAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(2, 300).Draw(t, "servers")
		parts := rapid.IntRange(2, min(MaxParts, servers)).Draw(t, "parts")
		key := rapid.Uint64().Draw(t, "key")
		home := HomeOf(key, servers)
		for part := range parts {
			at, ok := PartKey(key, part, parts, servers)
			if inside := key-HomeRange(home, servers).First < HomeRange(0, servers).Len(); ok != inside {
				t.Fatalf("key %d of %d servers: %v", key, servers, ok)
			}
			if !ok {
				continue
			}
			if rank := PartRank(home, part, servers); HomeOf(at, servers) != rank {
				t.Fatalf("part %d of key %d is at %d, not at home with server %d", part, key, at, rank)
			}
			if whole := WholeKey(at, home, part, parts, servers); whole != key {
				t.Fatalf("part %d of key %d is taken for one of key %d", part, key, whole)
			}
		}
	})
}

// No two parts of neighbouring keys, whatever their numbers of parts, have one key, nor
// that of a key of the job's.
func TestPartKeysDiffer(t *testing.T) {
	const servers, keys = 8, 200
	seen := map[uint64]bool{}
	for home := range int32(servers) {
		for offset := range uint64(keys) {
			key := HomeRange(home, servers).First + offset
			if seen[key] {
				t.Fatalf("key %d is met twice", key)
			}
			seen[key] = true
			for parts := 2; parts <= servers; parts++ {
				for part := range parts {
					at, ok := PartKey(key, part, parts, servers)
					if !ok || seen[at] {
						t.Fatalf("part %d of %d of key %d is at %d, as something else is", part, parts, key, at)
					}
					seen[at] = true
				}
			}
		}
	}
}

func TestPartBytesCoverAValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.IntRange(2, MaxParts).Draw(t, "parts")
		size := rapid.IntRange(8*parts, 1<<20).Draw(t, "size")
		end := 0
		for part := range parts {
			from, to := PartBytes(size, part, parts)
			if from != end || to <= from || from%8 != 0 {
				t.Fatalf("part %d of %d of %d bytes goes from %d to %d", part, parts, size, from, to)
			}
			if to-from > size/parts+16 {
				t.Fatalf("part %d of %d of %d bytes has %d", part, parts, size, to-from)
			}
			end = to
		}
		if end != size {
			t.Fatalf("the parts of %d bytes end at %d", size, end)
		}
	})
}

func TestOwns(t *testing.T) {
	for owner, want := range map[int32]bool{0: true, 3: true, 4: false, Home: false, Parted(1): false, Parted(2): true, Parted(4): true,
		Parted(5): false, Parted(MaxParts + 1): false, math.MaxInt32: false} {
		if Owns(owner, 4) != want {
			t.Errorf("owner %d among 4 servers: %v, want %v", owner, !want, want)
		}
	}
}
