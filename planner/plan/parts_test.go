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
		p := Places{Servers: rapid.IntRange(1, 300).Draw(t, "servers"), Spare: rapid.IntRange(0, 20).Draw(t, "spare")}
		p.Spare = max(p.Spare, 2-p.Servers)
		servers := p.Servers
		parts := rapid.IntRange(2, min(MaxParts, p.All())).Draw(t, "parts")
		key := rapid.Uint64().Draw(t, "key")
		home := HomeOf(key, servers)
		for part := range parts {
			at, ok := p.PartKey(key, part, parts)
			if inside := key-HomeRange(home, servers).First < HomeRange(0, servers).Len(); ok != inside {
				t.Fatalf("key %d of %d servers: %v", key, servers, ok)
			}
			if !ok {
				continue
			}
			rank := p.PartRank(home, part)
			if int(rank) < servers && HomeOf(at, servers) != rank {
				t.Fatalf("part %d of key %d is at %d, not at home with server %d", part, key, at, rank)
			}
			if of := p.PartOf(home, rank); of != part {
				t.Fatalf("part %d of key %d is with server %d, which has part %d", part, key, rank, of)
			}
			if whole := p.WholeKey(at, home, part, parts); whole != key {
				t.Fatalf("part %d of key %d is taken for one of key %d", part, key, whole)
			}
		}
	})
}

// The ranges of part keys at a place are those of each key of a range, also where they wrap, where the range
// reaches into another home, and at the end of all keys.
func TestPartRangesAreTheKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Places{Servers: rapid.IntRange(1, 20).Draw(t, "servers"), Spare: rapid.IntRange(0, 5).Draw(t, "spare")}
		p.Spare = max(p.Spare, 2-p.Servers)
		parts := rapid.IntRange(2, min(MaxParts, p.All())).Draw(t, "parts")
		rank := int32(rapid.IntRange(0, p.All()-1).Draw(t, "rank"))
		home := int32(rapid.IntRange(0, p.Servers-1).Draw(t, "home"))
		part := p.PartOf(home, rank)
		each := HomeRange(0, p.Servers).Len()
		middle := HomeRange(home, p.Servers).First
		switch rapid.IntRange(0, 3).Draw(t, "where") {
		case 1: // before the key whose part is at the place's last key
			middle += each - 1 - partShift(home, part, parts)%each
		case 2:
			middle = HomeRange(home, p.Servers).Last
		case 3:
			middle += rapid.Uint64Range(0, each-1).Draw(t, "offset")
		}
		const most = 60
		before, after := rapid.Uint64Range(0, most).Draw(t, "before"), rapid.Uint64Range(0, most).Draw(t, "after")
		r := Range{Keys: Keys{middle - min(before, middle), middle + min(after, math.MaxUint64-middle)}, Owner: p.Parted(parts)}
		want, got := map[uint64]uint64{}, map[uint64]uint64{} // whole keys by part key
		for k := r.First; ; k++ {
			home := HomeOf(k, p.Servers)
			if i := p.PartOf(home, rank); i < parts {
				if at, ok := p.PartKey(k, i, parts); ok {
					want[at] = k
				}
			}
			if k == r.Last {
				break
			}
		}
		ranges := p.PartRanges(r, rank)
		for _, of := range ranges {
			if of.Last < of.First || of.Last-of.First > 2*most {
				t.Fatalf("a range of part keys from %d to %d", of.First, of.Last)
			}
			for i := range of.Len() {
				got[of.First+i] = of.Whole + i
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("part keys of %v at place %d of %v: %v, want %v", r, rank, p, got, want)
		}
		if len(ranges) > 4 {
			t.Fatalf("%d ranges for %v", len(ranges), r)
		}
	})
	if got := (Places{Servers: 4}).PartRanges(Range{Keys: Keys{0, 9}, Owner: 2}, 2); got != nil {
		t.Errorf("part keys of a whole value: %v", got)
	}
}

// No two parts of neighbouring keys, whatever their numbers of parts, have one key, nor
// that of a key of the job's.
func TestPartKeysDiffer(t *testing.T) {
	for _, p := range []Places{{8, 0}, {1, 7}, {3, 5}} {
		partKeysDiffer(t, p)
	}
}

func partKeysDiffer(t *testing.T, p Places) {
	const keys = 200
	type place struct {
		rank int32
		key  uint64
	}
	servers, seen := p.Servers, map[place]bool{}
	for home := range int32(servers) {
		for offset := range uint64(keys) {
			key := HomeRange(home, servers).First + offset
			if whole := (place{home, key}); seen[whole] {
				t.Fatalf("key %d is met twice", key)
			} else {
				seen[whole] = true
			}
			for parts := 2; parts <= p.All(); parts++ {
				for part := range parts {
					at, ok := p.PartKey(key, part, parts)
					there := place{p.PartRank(home, part), at}
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
		Parted(5): false, Parted(MaxParts + 1): false, math.MaxInt32: false} {
		if (Places{Servers: 4}).Owns(owner) != want {
			t.Errorf("owner %d among 4 servers: %v, want %v", owner, !want, want)
		}
	}
	// With spare servers a key can be in more parts than there are servers.
	p := Places{Servers: 1, Spare: 3}
	for owner, want := range map[int32]bool{0: true, 1: false, p.Parted(1): false, p.Parted(2): true, p.Parted(4): true, p.Parted(5): false,
		Parted(2): false, Places{1, 2}.Parted(2): false, FirstParted: false} {
		if p.Owns(owner) != want {
			t.Errorf("owner %d among 1 server and 3 spare ones: %v, want %v", owner, !want, want)
		}
	}
	for owner, want := range map[int32]bool{p.Parted(4): true, p.Parted(5): false, Parted(2): false, 0: true, 1: false, Places{1, MaxPlaces}.Parted(2): false} {
		if Owns(owner, 1) != want {
			t.Errorf("owner %d of a job with one server: %v, want %v", owner, !want, want)
		}
	}
}
