package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
)

// A Placement has the owner of every key that it knows. A key without an entry stays at home.
// Owners are machines; Server maps them to ranks.
type Placement struct {
	Job       string // empty: for any job with as many servers
	Epoch     uint64 // 0 for a placement made before the run
	K         int    // machines
	Algorithm string // what made it, for people
	// Server is the PS-lite rank of each machine's server, len K, each of
	// 0..K-1 once.
	Server []int
	// Runs are the keys in ascending order, without overlap.
	Runs []PlacedRun
}

// A PlacedRun is a range of keys with one owner, or a list of keys with an owner each. In a range
// First..Last belong to Owners[0] and Keys is nil; in a list Owners[i] owns Keys[i].
type PlacedRun struct {
	First, Last uint64   // the first and the last key of the run
	Keys        []uint64 // nil for a whole range
	Owners      []int32  // machines, len(Keys), or 1 for a range
}

// runKeys is how many keys [NewPlacement] packs into one list.
const runKeys = 4096

// NewPlacement returns the placement of parameters among k machines. owners has the machine of each
// parameter, id returns its feature id, and key the key that the job uses for that on the wire.
func NewPlacement(owners []int32, id func(param int) uint64, k int, key func(id uint64) (uint64, error)) (*Placement, error) {
	type owned struct {
		key   uint64
		owner int32
	}
	all := make([]owned, len(owners))
	for p, owner := range owners {
		wire, err := key(id(p))
		if err != nil {
			return nil, fmt.Errorf("placing feature id %d: %w", id(p), err)
		}
		// PS-lite's ranges end before it, so no server would answer for it.
		if wire == math.MaxUint64 {
			return nil, fmt.Errorf("placing feature id %d: key 2^64-1 is beyond PS-lite's last key", id(p))
		}
		all[p] = owned{wire, owner}
	}
	slices.SortFunc(all, func(a, b owned) int { return cmp.Compare(a.key, b.key) })
	p := &Placement{K: k, Server: make([]int, k)}
	for i := range p.Server {
		p.Server[i] = i
	}
	for i := 0; i < len(all); {
		// Consecutive keys of one owner make a range, if enough of them.
		end := i + 1
		for end < len(all) && all[end].owner == all[i].owner && all[end].key == all[end-1].key+1 {
			end++
		}
		last := len(p.Runs) - 1
		switch {
		// A range costs a line of its own; a short one is cheaper within a list.
		case end-i >= runKeys/16:
			p.Runs = append(p.Runs, PlacedRun{First: all[i].key, Last: all[end-1].key, Owners: []int32{all[i].owner}})
			i = end
			continue
		case last < 0 || p.Runs[last].Keys == nil || len(p.Runs[last].Keys) >= runKeys:
			p.Runs = append(p.Runs, PlacedRun{First: all[i].key})
			last++
		}
		run := &p.Runs[last]
		for ; i < end; i++ {
			run.Keys, run.Owners = append(run.Keys, all[i].key), append(run.Owners, all[i].owner)
		}
		run.Last = all[end-1].key
	}
	return p, p.Validate()
}

// Len returns the number of keys. All keys of a range count, whether or not the job uses them. It
// saturates at the largest uint64.
func (p *Placement) Len() uint64 {
	n := uint64(0)
	for i := range p.Runs {
		r := &p.Runs[i]
		more := uint64(len(r.Keys))
		if r.Keys == nil {
			more = r.Last - r.First + 1
		}
		if n+more < n {
			return math.MaxUint64
		}
		n += more
	}
	return n
}

// Owner returns the machine that owns key; ok is false if the key is at home. Runs must be valid,
// see [Placement.Validate].
func (p *Placement) Owner(key uint64) (machine int, ok bool) {
	i := sort.Search(len(p.Runs), func(i int) bool { return p.Runs[i].Last >= key })
	if i == len(p.Runs) || p.Runs[i].First > key {
		return 0, false
	}
	r := &p.Runs[i]
	if r.Keys == nil {
		return int(r.Owners[0]), true
	}
	j, ok := slices.BinarySearch(r.Keys, key)
	if !ok {
		return 0, false
	}
	return int(r.Owners[j]), true
}

// Validate returns the first fault of a placement, nil if there is none: owners that do not exist,
// keys out of order, servers named twice.
func (p *Placement) Validate() error {
	if p.K < 1 || p.K > math.MaxInt32 {
		return fmt.Errorf("k = %d: want 1 or more machines", p.K)
	}
	if len(p.Server) != p.K {
		return fmt.Errorf("%d server ranks for k = %d machines", len(p.Server), p.K)
	}
	taken := make([]bool, p.K)
	for machine, rank := range p.Server {
		if rank < 0 || rank >= p.K || taken[rank] {
			return fmt.Errorf("machine %d has server rank %d: want each of 0..%d once", machine, rank, p.K-1)
		}
		taken[rank] = true
	}
	next := uint64(0) // the least key that may come
	for i := range p.Runs {
		if err := p.Runs[i].validate(p.K, next); err != nil {
			return fmt.Errorf("run %d of keys: %w", i, err)
		}
		next = p.Runs[i].Last + 1
	}
	return nil
}

// validate checks a run whose keys must be at least next.
func (r *PlacedRun) validate(k int, next uint64) error {
	switch {
	case r.Last < r.First:
		return fmt.Errorf("ends with key %d before it starts with %d", r.Last, r.First)
	case r.First < next:
		return fmt.Errorf("starts with key %d, but the run before ends with %d", r.First, next-1)
	case r.Last == math.MaxUint64:
		return fmt.Errorf("key 2^64-1 is beyond PS-lite's last key")
	case r.Keys == nil && len(r.Owners) != 1:
		return fmt.Errorf("a range has %d owners, want 1", len(r.Owners))
	case r.Keys != nil && len(r.Owners) != len(r.Keys):
		return fmt.Errorf("%d owners for %d keys", len(r.Owners), len(r.Keys))
	case r.Keys != nil && (len(r.Keys) == 0 || r.Keys[0] != r.First || r.Keys[len(r.Keys)-1] != r.Last):
		return fmt.Errorf("its keys do not go from %d to %d", r.First, r.Last)
	}
	for _, owner := range r.Owners {
		if owner < 0 || int(owner) >= k {
			return fmt.Errorf("owner %d: only machines 0..%d exist", owner, k-1)
		}
	}
	for i := 1; i < len(r.Keys); i++ {
		if r.Keys[i] <= r.Keys[i-1] {
			return fmt.Errorf("key %d follows key %d: want them ascending", r.Keys[i], r.Keys[i-1])
		}
	}
	return nil
}
