package plan

import (
	"iter"
	"slices"
	"sort"
)

// chunkRanges is how many ranges a chunk has at most. A change moves at most a chunk's ranges, 12
// KiB, in memory.
const chunkRanges = 512

// Owners are all displaced keys of a job, as ascending ranges that do not overlap. The ranges are
// kept in chunks: a lookup is two binary searches, and a change shifts one chunk, where a flat
// slice of a million ranges would shift all of it. The zero value is empty: all keys are at home.
// It is not safe for concurrent use.
//
// Invariants: no range has Home as its owner; ranges and keys are the sums over all chunks.
// Neighbouring ranges of one owner are joined as they are set.
type Owners struct {
	chunks [][]Range // ascending, none empty
	ranges int
	keys   uint64
}

// Ranges returns how many ranges there are.
func (o *Owners) Ranges() int { return o.ranges }

// Keys returns how many keys are displaced; it wraps around beyond 2^64.
func (o *Owners) Keys() uint64 { return o.keys }

// Owner returns the owner of the key: a rank, a number of parts (see [PartsOf]), or Home.
func (o *Owners) Owner(key uint64) int32 {
	c, i := o.findRange(key)
	if c == len(o.chunks) || o.chunks[c][i].First > key {
		return Home
	}
	return o.chunks[c][i].Owner
}

// findRange returns the position of the first range that does not end before key, len(o.chunks) if
// there is none. The range contains key unless it starts after it.
func (o *Owners) findRange(key uint64) (chunk, at int) {
	chunk = sort.Search(len(o.chunks), func(c int) bool { return o.chunks[c][len(o.chunks[c])-1].Last >= key })
	if chunk < len(o.chunks) {
		at = sort.Search(len(o.chunks[chunk]), func(i int) bool { return o.chunks[chunk][i].Last >= key })
	}
	return chunk, at
}

// All yields the ranges in ascending order. Owners must not change meanwhile.
func (o *Owners) All() iter.Seq[Range] {
	return func(yield func(Range) bool) {
		for _, c := range o.chunks {
			for _, r := range c {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// Within yields the owners of the keys in ranges that cover k without a gap, with Home for those
// that are not displaced. Owners must not change meanwhile.
func (o *Owners) Within(k Keys) iter.Seq[Range] {
	return func(yield func(Range) bool) {
		next := k.First // not covered yet
		for c, i := o.findRange(k.First); c < len(o.chunks); c, i = c+1, 0 {
			for _, r := range o.chunks[c][i:] {
				if r.First > k.Last {
					yield(Range{Keys{next, k.Last}, Home})
					return
				}
				if r.First > next && !yield(Range{Keys{next, r.First - 1}, Home}) {
					return
				}
				if !yield(Range{Keys{max(r.First, k.First), min(r.Last, k.Last)}, r.Owner}) || r.Last >= k.Last {
					return
				}
				next = r.Last + 1
			}
		}
		yield(Range{Keys{next, k.Last}, Home})
	}
}

// Set gives the keys another owner; with Home they are displaced no more. It replaces all ranges
// under r by at most three: the rest of one that begins before r, r itself, and the rest of one
// that ends after it.
func (o *Owners) Set(r Range) {
	if r.Owner != Home {
		r.Keys = o.joined(r)
	}
	c, i := o.findRange(r.First)
	var put [3]Range
	n := 0
	if c < len(o.chunks) && o.chunks[c][i].First < r.First {
		put[n] = Range{Keys{o.chunks[c][i].First, r.First - 1}, o.chunks[c][i].Owner}
		n++
	}
	if r.Owner != Home {
		put[n] = r
		n++
	}
	end, j := c, i // after the last range that is touched
	for end < len(o.chunks) && o.chunks[end][j].First <= r.Last {
		old := o.chunks[end][j]
		o.keys -= old.Last - old.First + 1
		o.ranges--
		if old.Last > r.Last {
			put[n] = Range{Keys{r.Last + 1, old.Last}, old.Owner}
			n++
		}
		if j++; j == len(o.chunks[end]) {
			end, j = end+1, 0
		}
	}
	for _, p := range put[:n] {
		o.keys += p.Last - p.First + 1
		o.ranges++
	}
	o.splice(c, i, end, j, put[:n])
}

// joined extends the range by the ranges of the same owner that touch or overlap its ends, so that
// keys set one by one become one range.
func (o *Owners) joined(r Range) Keys {
	k := r.Keys
	if k.First > 0 {
		if c, i := o.findRange(k.First - 1); c < len(o.chunks) && o.chunks[c][i].First < k.First && o.chunks[c][i].Owner == r.Owner {
			k.First = o.chunks[c][i].First
		}
	}
	if k.Last+1 > 0 {
		if c, i := o.findRange(k.Last + 1); c < len(o.chunks) && o.chunks[c][i].First <= k.Last+1 && o.chunks[c][i].Owner == r.Owner {
			k.Last = max(k.Last, o.chunks[c][i].Last)
		}
	}
	return k
}

// splice replaces the ranges from position c, i up to, but without, position end, j. It keeps
// chunks non-empty and within chunkRanges, by halving one that has grown too long.
func (o *Owners) splice(c, i, end, j int, put []Range) {
	switch {
	case c == len(o.chunks) && c > 0: // after all: into the last chunk
		c, i = c-1, len(o.chunks[c-1])
		end, j = c, i
	case c == len(o.chunks):
		if len(put) > 0 {
			o.chunks = append(o.chunks, slices.Clone(put))
		}
		return
	}
	if end == c {
		o.chunks[c] = slices.Replace(o.chunks[c], i, j, put...)
	} else {
		// The ranges go across chunks: keep the head of the first one, drop those in between, and
		// keep the tail of the last.
		o.chunks[c] = append(o.chunks[c][:i], put...)
		if end < len(o.chunks) {
			o.chunks[end] = slices.Delete(o.chunks[end], 0, j)
		}
		o.chunks = slices.Delete(o.chunks, c+1, end)
	}
	switch n := len(o.chunks[c]); {
	case n == 0:
		o.chunks = slices.Delete(o.chunks, c, c+1)
	// Halves have room for insertions on both sides.
	case n > chunkRanges:
		o.chunks = slices.Insert(o.chunks, c+1, slices.Clone(o.chunks[c][n/2:]))
		o.chunks[c] = o.chunks[c][:n/2]
	}
}

// Resolved yields the owners of the keys in ranges that cover k without a gap, with keys at home
// resolved to their home's rank. servers is the number of the job's servers.
func (o *Owners) Resolved(k Keys, servers int) iter.Seq[Range] {
	return func(yield func(Range) bool) {
		for r := range o.Within(k) {
			if r.Owner != Home {
				if !yield(r) {
					return
				}
				continue
			}
			for part := range Homes(r.Keys, servers) {
				if !yield(part) {
					return
				}
			}
		}
	}
}

// Assign gives the keys to an owner that is a rank or a number of parts. Keys whose home it is are
// displaced no more, so that Owners never has an entry for a key at home.
func (o *Owners) Assign(k Keys, to int32, servers int) {
	for part := range Homes(k, servers) {
		if part.Owner == to {
			part.Owner = Home
		} else {
			part.Owner = to
		}
		o.Set(part)
	}
}

// Homes yields the keys cut where homes meet, with their homes' ranks.
func Homes(k Keys, servers int) iter.Seq[Range] {
	return func(yield func(Range) bool) {
		for {
			rank := HomeOf(k.First, servers)
			last := min(k.Last, HomeRange(rank, servers).Last)
			if !yield(Range{Keys{k.First, last}, rank}) || last == k.Last {
				return
			}
			k.First = last + 1
		}
	}
}
