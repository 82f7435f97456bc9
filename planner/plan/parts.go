package plan

// A key whose value is large can be held in parts. Part i of P is the value of a part key, which is
// at home with the i-th server from the key's home on. The owner of such a key is not a rank but a
// number from FirstParted on, which encodes P. Everything else follows from that number, so that
// every host finds the parts without further state.
//
// Besides its servers, a job may have spare servers, stores in the proxies of hosts that have no
// server. Their ranks follow those of the servers. They hold parts only, and no key is at home with
// them. Servers and spare servers together are the job's places for parts. The owner of a key in
// parts encodes the number of spare servers too: a proxy that knows of another number, or of none,
// would look for the parts elsewhere, and rejects the owner.
//
// Part keys lie anywhere in the key space, as hashes do, so a collision with a key of the job is
// unlikely: for a billion keys and a thousand values in 16 parts its probability is one in a
// million. Nothing checks for it.

// FirstParted is the first owner that is no server's rank.
const FirstParted int32 = 1 << 15

// MaxParts is how many parts a key can have, MaxPlaces how many places for parts a job can have.
const (
	MaxParts  = 16
	MaxPlaces = 1 << 13
)

// Places are where the parts of a job's keys can be: its servers and, with the ranks after them,
// spare servers. A job has at least one server.
type Places struct{ Servers, Spare int }

// All returns the number of places.
func (p Places) All() int { return p.Servers + p.Spare }

// partsBits is how many bits of an owner have the number of parts. The number of spare servers is
// above them.
const partsBits = 5

// Parted encodes the owner of a key that is in parts, 2 to [MaxParts], of a job without spare
// servers.
func Parted(parts int) int32 { return FirstParted + int32(parts) }

// Parted encodes the owner of a key that is in parts, 2 to [MaxParts].
func (p Places) Parted(parts int) int32 { return Parted(parts) + int32(p.Spare)<<partsBits }

// PartsOf returns the number of parts that an owner encodes, 0 if the key is whole.
func PartsOf(owner int32) int {
	if owner < FirstParted {
		return 0
	}
	return int(owner-FirstParted) & (1<<partsBits - 1)
}

// spareOf returns the number of spare servers that the owner of a key in parts encodes.
func spareOf(owner int32) int { return int(owner-FirstParted) >> partsBits }

// Owns reports whether an owner may be one of a key of a job with that many servers, of whose spare
// servers nothing else is known: the rank of a server, or 2 to MaxParts parts in different places. It
// checks owners that come from the network.
func Owns(owner int32, servers int) bool {
	p := Places{Servers: servers}
	if owner >= FirstParted {
		p.Spare = spareOf(owner)
	}
	return p.Owns(owner)
}

// Owns is [Owns] for a job whose places are known.
func (p Places) Owns(owner int32) bool {
	if owner >= FirstParted {
		parts := PartsOf(owner)
		return parts >= 2 && parts <= min(MaxParts, p.All()) && spareOf(owner) == p.Spare && p.All() <= MaxPlaces
	}
	return owner >= 0 && int(owner) < p.Servers
}

// PartRank returns the rank of the place that holds a part of the keys of a home.
func (p Places) PartRank(home int32, part int) int32 {
	return int32((int(home) + part) % p.All())
}

// PartOf is the inverse of PartRank.
func (p Places) PartOf(home, rank int32) int {
	return (int(rank-home) + p.All()) % p.All()
}

// PartKey returns the key under which a part is stored. ok is false for the few keys above the last
// home range, and for a single place: those cannot be in parts.
func (p Places) PartKey(key uint64, part, parts int) (at uint64, ok bool) {
	home := HomeOf(key, p.Servers)
	each := HomeRange(0, p.Servers).Len()
	offset := key - HomeRange(home, p.Servers).First
	if offset >= each || p.All() < 2 {
		return 0, false
	}
	return p.firstOf(home, part) + addModulo(offset, partShift(home, part, parts)%each, each), true
}

// firstOf returns the first of the part keys of a home and part. With a spare server, where no key is
// at home, they lie in the range of the key's home.
func (p Places) firstOf(home int32, part int) uint64 {
	rank := p.PartRank(home, part)
	if int(rank) >= p.Servers {
		rank = home
	}
	return HomeRange(rank, p.Servers).First
}

// WholeKey is the inverse of [Places.PartKey] for a part of a key of the given home. Its result is
// meaningless if at is not such a part key.
func (p Places) WholeKey(at uint64, home int32, part, parts int) uint64 {
	each := HomeRange(0, p.Servers).Len()
	offset := at - p.firstOf(home, part)
	shift := partShift(home, part, parts) % each
	return HomeRange(home, p.Servers).First + addModulo(offset%each, (each-shift)%each, each)
}

// PartRange is a range of part keys. Whole is the key that the first of them is a part of; those after it
// are parts of the keys after Whole.
type PartRange struct {
	Keys
	Whole uint64
}

// PartRanges returns the part keys of a range of keys that are at the place of a rank, at most two ranges for
// each home.
func (p Places) PartRanges(r Range, rank int32) (parts []PartRange) {
	n := PartsOf(r.Owner)
	for home := HomeOf(r.First, p.Servers); n > 0 && home <= HomeOf(r.Last, p.Servers); home++ {
		all, part := HomeRange(home, p.Servers), p.PartOf(home, rank)
		if part >= n {
			continue
		}
		first := max(r.First, all.First)
		// The keys above the last home range are never in parts.
		each := HomeRange(0, p.Servers).Len()
		left := min(r.Last, all.First+(each-1)) - first + 1
		for left > 0 && first-all.First < each {
			at, ok := p.PartKey(first, part, n)
			if !ok {
				break
			}
			run := min(left, p.firstOf(home, part)+(each-1)-at+1)
			parts = append(parts, PartRange{Keys{at, at + (run - 1)}, first})
			first, left = first+run, left-run
		}
	}
	return parts
}

// addModulo returns (a + b) mod m for a and b below m. With one server m is nearly 2^64.
func addModulo(a, b, m uint64) uint64 {
	if a >= m-b {
		return a - (m - b)
	}
	return a + b
}

// partShift is the distance of a part key from the place of its key within the home. It differs by
// home, part and number of parts: when a value goes from two parts to four, the quarters must not
// be stored under the keys of the halves, which a server may still hold. The mixing function is
// that of SplitMix64.
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
