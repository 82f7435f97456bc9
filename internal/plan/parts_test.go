package plan

import (
	"maps"
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
			rank := PartRank(home, part, servers)
			if HomeOf(at, servers) != rank {
				t.Fatalf("part %d of key %d is at %d, not at home with server %d", part, key, at, rank)
			}
			if of := partOf(home, rank, servers); of != part {
				t.Fatalf("part %d of key %d is with server %d, which has part %d", part, key, rank, of)
			}
			if whole := WholeKey(at, home, part, parts, servers); whole != key {
				t.Fatalf("part %d of key %d is taken for one of key %d", part, key, whole)
			}
		}
	})
}

// The ranges of part keys at a server are those of each key of a range, also where they wrap, where the range
// reaches into another home, and at the end of all keys.
func TestPartRangesAreTheKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(2, 25).Draw(t, "servers")
		parts := rapid.IntRange(2, min(MaxParts, servers)).Draw(t, "parts")
		rank := int32(rapid.IntRange(0, servers-1).Draw(t, "rank"))
		home := int32(rapid.IntRange(0, servers-1).Draw(t, "home"))
		part := partOf(home, rank, servers)
		each := HomeRange(0, servers).Len()
		middle := HomeRange(home, servers).First
		switch rapid.IntRange(0, 3).Draw(t, "where") {
		case 1: // before the key whose part is at the server's last key
			middle += each - 1 - partShift(home, part, parts)%each
		case 2:
			middle = HomeRange(home, servers).Last
		case 3:
			middle += rapid.Uint64Range(0, each-1).Draw(t, "offset")
		}
		const most = 60
		before, after := rapid.Uint64Range(0, most).Draw(t, "before"), rapid.Uint64Range(0, most).Draw(t, "after")
		r := Range{Keys: Keys{middle - min(before, middle), middle + min(after, math.MaxUint64-middle)}, Owner: Parted(parts)}
		want, got := map[uint64]uint64{}, map[uint64]uint64{} // whole keys by part key
		for k := r.First; ; k++ {
			home := HomeOf(k, servers)
			if i := partOf(home, rank, servers); i < parts {
				if at, ok := PartKey(k, i, parts, servers); ok {
					want[at] = k
				}
			}
			if k == r.Last {
				break
			}
		}
		ranges := PartRanges(r, rank, servers)
		for _, of := range ranges {
			if of.Last < of.First || of.Last-of.First > 2*most {
				t.Fatalf("a range of part keys from %d to %d", of.First, of.Last)
			}
			for i := range of.Len() {
				got[of.First+i] = of.Whole + i
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("part keys of %v at server %d of %d: %v, want %v", r, rank, servers, got, want)
		}
		if len(ranges) > 4 {
			t.Fatalf("%d ranges for %v", len(ranges), r)
		}
	})
	if got := PartRanges(Range{Keys: Keys{0, 9}, Owner: 2}, 2, 4); got != nil {
		t.Errorf("part keys of a whole value: %v", got)
	}
}

// No two parts of neighbouring keys, whatever their numbers of parts, have one key, nor
// that of a key of the job's.
func TestPartKeysDiffer(t *testing.T) {
	const servers, keys = 8, 200
	type place struct {
		rank int32
		key  uint64
	}
	seen := map[place]bool{}
	for home := range int32(servers) {
		for offset := range uint64(keys) {
			key := HomeRange(home, servers).First + offset
			if whole := (place{home, key}); seen[whole] {
				t.Fatalf("key %d is met twice", key)
			} else {
				seen[whole] = true
			}
			for parts := 2; parts <= servers; parts++ {
				for part := range parts {
					at, ok := PartKey(key, part, parts, servers)
					there := place{PartRank(home, part, servers), at}
					if !ok || seen[there] {
						t.Fatalf("part %d of %d of key %d is at %d, as something else is", part, parts, key, at)
					}
					seen[there] = true
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
		FirstParted: false, Parted(5): false, Parted(MaxParts + 1): false, Parted(2) + 1<<5: false, math.MaxInt32: false} {
		if Owns(owner, 4) != want {
			t.Errorf("owner %d among 4 servers: %v, want %v", owner, !want, want)
		}
	}
}
