package counts

// A sample is which keys are looked at: of blocks of neighbouring keys one in 2^bits, half
// of them always the same ones, whose users are known at once when they change, and half
// in turn, so that each block is looked at for a while, once in 2^(bits+1) turns.
// The same keys are in it on all hosts whose clocks agree, so that all uses of a key
// are seen together; those of a larger sample are all in those of fewer bits.
// Neighbours are in it together, so that they can move as a range.
type sample struct {
	bits uint8  // 0: all keys
	turn uint64 // see turnAt
}

// sampleBits says how many keys a block has: 2^sampleBits.
const sampleBits = 6

// turnBits says how long a turn is: 2^turnBits ns, 34 s, which are five windows.
const turnBits = 35

// turnAt returns the turn at a time, in nanoseconds since 1970.
func turnAt(at int64) uint64 { return uint64(at) >> turnBits }

// has reports whether the key is in the sample.
func (s sample) has(key uint64) bool {
	mask := uint64(1)<<s.bits<<1 - 1
	class := (key>>sampleBits + 1) * 0x9e3779b97f4a7c15 >> 32 & mask
	return s.bits == 0 || class == 0 || class == s.turn&mask
}

// part returns about how many of that many keys are in the sample.
func (s sample) part(n int) int { return n >> s.bits }

// larger returns the sample that is tried after this one was needed.
func (s sample) larger() sample { return sample{max(s.bits, 1) - 1, s.turn} }

// appendRun appends the keys of a run that are in the sample.
func (s sample) appendRun(to []uint64, r Run) []uint64 {
	if s.bits == 0 || r.Step != 1 {
		for i := range r.N {
			if key := r.First + uint64(i)*r.Step; s.has(key) {
				to = append(to, key)
			}
		}
		return to
	}
	for left, key := uint64(r.N), r.First; left > 0; { // block by block
		n := min(left, 1<<sampleBits-key&(1<<sampleBits-1))
		if s.has(key) {
			for i := range n {
				to = append(to, key+i)
			}
		}
		key, left = key+n, left-n
	}
	return to
}
