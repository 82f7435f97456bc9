package counts

// A sample selects the keys that a window covers: of blocks of neighbouring keys, one in
// 2^bits. Half of the selected blocks are always the same, so that a change of their users
// shows at once. The other half rotates, so that every block has its turn once in 2^(bits+1)
// turns.
//
// Hosts whose clocks agree select the same keys, so that the planner sees all uses of a key. A
// sample with fewer bits includes the one with more, so a sample can be thinned. Neighbours are
// selected together, so that they can be moved as a range.
type sample struct {
	bits uint8  // 0: all keys
	turn uint64 // selects the rotating half; see turnAt
}

// sampleBits gives the size of a block: 2^sampleBits keys.
const sampleBits = 6

// turnBits gives the length of a turn: 2^turnBits ns, 34 s, about five windows.
const turnBits = 35

// turnAt returns the turn at a time, in nanoseconds since 1970.
func turnAt(at int64) uint64 { return uint64(at) >> turnBits }

// has reports whether the key is in the sample. Class 0 is the fixed half; the class of the
// current turn is the rotating one.
func (s sample) has(key uint64) bool {
	mask := uint64(1)<<s.bits<<1 - 1
	class := (key>>sampleBits + 1) * 0x9e3779b97f4a7c15 >> 32 & mask
	return s.bits == 0 || class == 0 || class == s.turn&mask
}

// part returns about how many of n keys are in the sample.
func (s sample) part(n int) int { return n >> s.bits }

// larger returns the sample for the next window: twice as large, in case there is room now.
func (s sample) larger() sample { return sample{max(s.bits, 1) - 1, s.turn} }

// appendRun appends the keys of a run that are in the sample. For consecutive keys it decides
// once for each block.
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
