package locality

import "github.com/psidecar/psidecar/agent/counts"

// A sample is which keys are looked at: one block of neighbouring keys in 2^sample.
// The same keys are in it on all hosts and at all times, so that all uses of a key
// are seen together; those of a larger sample are all in those with smaller numbers.
// Neighbours are in it together, so that they can move as a range.
type sample uint8

// sampleBits says how many keys a block has: 2^sampleBits.
const sampleBits = 6

// has reports whether the key is in the sample.
func (s sample) has(key uint64) bool {
	return (key>>sampleBits+1)*0x9e3779b97f4a7c15>>32&(1<<s-1) == 0
}

// larger returns the sample that is tried after this one was needed.
func (s sample) larger() sample { return max(s, 1) - 1 }

// appendRun appends the keys of a run that are in the sample.
func (s sample) appendRun(to []uint64, r counts.Run) []uint64 {
	if s == 0 || r.Step != 1 {
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
