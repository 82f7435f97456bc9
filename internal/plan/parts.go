package plan

import "github.com/psidecar/psidecar/internal/splitmix"

// A key whose value is large can be held in parts. Part i of P is the value of a part key, which is
// at home with the i-th server from the key's home on. The owner of such a key is not a rank but a
// number from FirstParted on, which encodes P. Everything else follows from that number, so that
// every host finds the parts without further state.
//
// Part keys lie anywhere in the key space, as hashes do, so a collision with a key of the job is
// unlikely: for a billion keys and a thousand values in 16 parts its probability is one in a
// million. Nothing checks for it.

// FirstParted is the first owner that is no server's rank.
const FirstParted int32 = 1 << 15

// MaxParts is how many parts a key can have, maxPartedServers how many servers a job with keys in
// parts can have.
const (
	MaxParts         = 16
	maxPartedServers = 1 << 13
)

// Parted encodes the owner of a key that is in parts, 2 to [MaxParts].
func Parted(parts int) int32 { return FirstParted + int32(parts) }

// PartsOf returns the number of parts that an owner encodes, 0 if the key is whole.
func PartsOf(owner int32) int {
	if owner < FirstParted {
		return 0
	}
	return int(owner - FirstParted)
}

// Owns reports whether an owner is valid for a key of a job with that many servers: a rank, or 2 to
// MaxParts parts on different servers. It checks owners that come from the network.
func Owns(owner int32, servers int) bool {
	if owner >= FirstParted {
		parts := PartsOf(owner)
		return parts >= 2 && parts <= min(MaxParts, servers) && servers <= maxPartedServers
	}
	return owner >= 0 && int(owner) < servers
}

// PartRank returns the rank of the server that holds a part of the keys of a home.
func PartRank(home int32, part, servers int) int32 {
	return int32((int(home) + part) % servers)
}

// partOf is the inverse of [PartRank].
func partOf(home, rank int32, servers int) int {
	return (int(rank-home) + servers) % servers
}

// PartKey returns the key under which a part is stored. ok is false for the few keys above the last
// home range, and for a single server: those cannot be in parts.
func PartKey(key uint64, part, parts, servers int) (at uint64, ok bool) {
	home := HomeOf(key, servers)
	each := HomeRange(0, servers).Len()
	offset := key - HomeRange(home, servers).First
	if offset >= each || servers < 2 {
		return 0, false
	}
	first := HomeRange(PartRank(home, part, servers), servers).First
	return first + (offset+partShift(home, part, parts)%each)%each, true
}

// WholeKey is the inverse of [PartKey] for a part of a key of the given home. Its result is
// meaningless if at is not such a part key.
func WholeKey(at uint64, home int32, part, parts, servers int) uint64 {
	each := HomeRange(0, servers).Len()
	offset := at - HomeRange(PartRank(home, part, servers), servers).First
	shift := partShift(home, part, parts) % each
	return HomeRange(home, servers).First + (offset+each-shift)%each
}

// PartRange is a range of part keys. Whole is the key that the first of them is a part of; those after it
// are parts of the keys after Whole.
type PartRange struct {
	Keys
	Whole uint64
}

// PartRanges returns the part keys of a range of keys that are at the server of a rank, at most two ranges
// for each home.
func PartRanges(r Range, rank int32, servers int) (parts []PartRange) {
	n := PartsOf(r.Owner)
	for home := HomeOf(r.First, servers); n > 0 && home <= HomeOf(r.Last, servers); home++ {
		all, part := HomeRange(home, servers), partOf(home, rank, servers)
		if part >= n {
			continue
		}
		first := max(r.First, all.First)
		// The keys above the last home range are never in parts.
		each := HomeRange(0, servers).Len()
		left := min(r.Last, all.First+(each-1)) - first + 1
		for left > 0 && first-all.First < each {
			at, ok := PartKey(first, part, n, servers)
			if !ok {
				break
			}
			run := min(left, HomeRange(rank, servers).First+(each-1)-at+1)
			parts = append(parts, PartRange{Keys{at, at + (run - 1)}, first})
			first, left = first+run, left-run
		}
	}
	return parts
}

// partShift is the distance of a part key from the place of its key within the home. It differs by
// home, part and number of parts: when a value goes from two parts to four, the quarters must not
// be stored under the keys of the halves, which a server may still hold. The mixing function is
// that of SplitMix64.
func partShift(home int32, part, parts int) uint64 {
	z := uint64(home)<<32 | uint64(parts)<<16 | uint64(part)
	for range 2 {
		z = splitmix.Next(z)
	}
	return z
}

// PartBytes returns the bytes of a value that a part has, from up to, but without, to. Parts end at
// multiples of 8 bytes, so that no number is divided; only the last may end elsewhere.
func PartBytes(size, part, parts int) (from, to int) {
	at := func(i int) int {
		if i == parts {
			return size
		}
		return size / 8 * i / parts * 8
	}
	return at(part), at(part + 1)
}
