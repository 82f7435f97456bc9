package plan

// A key whose value is large can be held in parts: part i of P is the value of a part key,
// at home with the i-th server from the key's home on. Such a key has no server for an
// owner but a number from FirstParted on, which encodes the number of parts; all else
// follows from it, so that every host finds the parts without further state. Part keys lie
// anywhere in the key space, as hashes do, so that one is as good as never a key of the
// job's own: for a billion of these and a thousand values in 16 parts the chance is one in
// a million. Nobody looks whether it is.

// FirstParted is the first owner that is no server's rank.
const FirstParted int32 = 1 << 15

// MaxParts is how many parts a key can have, and maxPartedServers how many servers a job
// whose keys can be in parts.
const (
	MaxParts         = 16
	maxPartedServers = 1 << 13
)

// Parted encodes the owner of a key that is in parts, 2 to [MaxParts].
func Parted(parts int) int32 { return FirstParted + int32(parts) }

// PartsOf returns how many parts a key has that has such an owner, 0 where it is whole.
func PartsOf(owner int32) int {
	if owner < FirstParted {
		return 0
	}
	return int(owner - FirstParted)
}

// Owns reports whether a key of a job with that many servers can have such an
// owner.
func Owns(owner int32, servers int) bool {
	if parts := PartsOf(owner); parts > 0 {
		return parts >= 2 && parts <= MaxParts && parts <= servers && servers <= maxPartedServers
	}
	return owner >= 0 && int(owner) < servers
}

// PartRank returns the rank of the server that has a part of the keys of a home.
func PartRank(home int32, part, servers int) int32 {
	return int32((int(home) + part) % servers)
}

// PartKey returns the key of a part; ok is false for the few keys above the last home
// range, which cannot be in parts.
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

// WholeKey is the reverse, of a part of a key of a home. It is of no sense where at is no
// such part's key.
func WholeKey(at uint64, home int32, part, parts, servers int) uint64 {
	each := HomeRange(0, servers).Len()
	offset := at - HomeRange(PartRank(home, part, servers), servers).First
	shift := partShift(home, part, parts) % each
	return HomeRange(home, servers).First + (offset+each-shift)%each
}

// partShift is how far part keys are from where their keys are in their home: another
// number for each home, part and number of parts, since a part of a quarter must never
// meet what a server still has of a half.
func partShift(home int32, part, parts int) uint64 {
	z := uint64(home)<<32 | uint64(parts)<<16 | uint64(part)
	for range 2 {
		z += 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
	}
	return z
}

// PartBytes returns which of a value's bytes a part has. Parts end where 8 bytes do, so
// that no number is cut; only the last may end elsewhere.
func PartBytes(size, part, parts int) (from, to int) {
	at := func(i int) int {
		if i == parts {
			return size
		}
		return size / 8 * i / parts * 8
	}
	return at(part), at(part + 1)
}
