package migrate

// visited is the worlds that a search knows, by 64 bits of a digest of all but
// their budgets: that two of n have the same one, so that the second is taken for
// known, has a chance of n²/2^65, 1 in 1,000 for 190 million. (Digests of two runs
// have nothing in common.)
type visited struct {
	entries []entry // as many as a power of two
	used    int
}

// entry is the search's record of a world.
type entry struct {
	digest uint64 // 0: none
	with   uint64 // bit i: it is visited, or will be, with the budget of rank i
	number uint32 // with the budget it was given a number with last
}

// slot returns the place of a world. It holds until the next call.
func (v *visited) slot(digest uint64) *entry {
	if digest == 0 {
		digest = 1
	}
	mask := uint64(len(v.entries) - 1)
	for i := digest & mask; ; i = (i + 1) & mask {
		switch e := &v.entries[i]; e.digest {
		case digest:
			return e
		case 0:
			if v.used > len(v.entries)/8*7 {
				v.grow()
				return v.slot(digest)
			}
			v.used++
			e.digest = digest
			return e
		}
	}
}

func (v *visited) grow() {
	old := v.entries
	v.entries, v.used = make([]entry, max(2*len(old), 1<<12)), 0
	for i := range old {
		if old[i].digest != 0 {
			*v.slot(old[i].digest) = old[i]
		}
	}
}

// reached is a world, and how it was reached.
type reached struct {
	world  world
	parent uint32
	action uint8
}

// backlog is worlds to be looked at, first in, first out, in blocks, of which
// those done with are let go.
type backlog struct {
	blocks [][]reached
	first  int // in the first block
}

const backlogBlock = 1024

func (b *backlog) add(r *reached) {
	if n := len(b.blocks); n == 0 || len(b.blocks[n-1]) == backlogBlock {
		b.blocks = append(b.blocks, make([]reached, 0, backlogBlock))
	}
	last := &b.blocks[len(b.blocks)-1]
	*last = append(*last, *r)
}

func (b *backlog) take() (r reached, ok bool) {
	if len(b.blocks) == 0 || b.first == len(b.blocks[0]) {
		return r, false
	}
	r = b.blocks[0][b.first]
	if b.first++; b.first == backlogBlock {
		b.blocks[0] = nil
		b.blocks, b.first = b.blocks[1:], 0
	}
	return r, true
}
