package route

import (
	"cmp"
	"maps"
	"slices"
	"sort"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// hold is keys that requests must wait for.
type hold struct {
	keys       []plan.Keys // ascending
	generation uint32      // of the last requests to wait for
	quiet      bool        // said so
	told       bool        // likewise at any time, by this router or one before it
}

// A Keeper records, for the router of the next proxy, which keys are held and where
// they went. It is called before the change takes effect.
type Keeper interface {
	Held(b Batch, keys []plan.Keys)
	Released(b Batch, owner int32)
}

// Keep has the router tell k from now on.
func (r *Router) Keep(k Keeper) { r.keeper = k }

// A Follower has something of the workers' go along with keys, to the servers that
// have them now, and says something to servers that the router does not see.
type Follower interface {
	// Follow is called before any request goes by the new table: these ranges of
	// keys may have other owners; nil: any key may.
	Follow(keys []plan.Keys)
	// Busy reports whether something is under way that the router does not see: no
	// hold becomes quiet meanwhile.
	Busy() bool
	// Waits reports whether something of the workers' pushes of these keys waits.
	Waits(keys []plan.Keys) bool
}

// SetFollower has f follow from now on.
func (r *Router) SetFollower(f Follower) { r.follower = f }

// Waits reports whether something of the workers' pushes of these keys waits, which could
// not go along into parts.
func (r *Router) Waits(keys []plan.Keys) bool { return r.follower != nil && r.follower.Waits(keys) }

func (r *Router) follow(keys []plan.Keys) {
	if r.follower != nil {
		r.follower.Follow(keys)
	}
}

// Still reports whether no key is on its way between servers, as far as this
// router has allowed it.
func (r *Router) Still() bool {
	for _, h := range r.holds {
		if h.told {
			return false
		}
	}
	return !r.closed
}

// Hold makes requests for the keys, ascending, wait until the batch is
// released. When all that was under way before has been answered, Out says that
// the batch is quiet. It reports false where another batch has one of the keys;
// calling it again for the same batch changes nothing, but quiet is said again.
func (r *Router) Hold(b Batch, keys []plan.Keys) bool {
	if h := r.holds[b]; h != nil {
		h.quiet = false
		r.checkQuiet()
		return true
	}
	for _, h := range r.holds {
		if overlap(h.keys, keys) {
			return false
		}
	}
	r.holds[b] = &hold{keys: keys, generation: r.generation, told: r.closed}
	if r.keeper != nil {
		r.keeper.Held(b, keys)
	}
	r.generation++
	r.checkQuiet()
	return true
}

// Held returns the keys of a batch that is held; nil where it is not.
func (r *Router) Held(b Batch) []plan.Keys {
	if h := r.holds[b]; h != nil {
		return h.keys
	}
	return nil
}

// Quiet reports whether it was said of a batch that it is quiet.
func (r *Router) Quiet(b Batch) bool { return r.holds[b] != nil && r.holds[b].quiet }

// Holds returns the batches that are held, in a fixed order.
func (r *Router) Holds() []Batch {
	return slices.SortedFunc(maps.Keys(r.holds), func(a, b Batch) int {
		return cmp.Or(cmp.Compare(a.Mover, b.Mover), cmp.Compare(a.Number, b.Number))
	})
}

// Release ends a hold. The keys have that owner from now on; with
// [Unchanged] they stay where they were.
func (r *Router) Release(b Batch, owner int32) {
	h := r.holds[b]
	if h == nil {
		return
	}
	delete(r.holds, b)
	if r.keeper != nil {
		r.keeper.Released(b, owner)
	}
	if owner != Unchanged {
		changes := make([]plan.Range, len(h.keys))
		for i, k := range h.keys {
			changes[i] = plan.Range{Keys: k, Owner: owner}
		}
		r.table.Set(changes)
		r.follow(h.keys)
	}
	r.flush()
}

// Unchanged is the owner of keys that did not move after all.
const Unchanged int32 = -2

// SetCarried says whether all requests of this host's workers, and all answers,
// come by here. While they do not no batch is quiet: requests that are not seen
// may be under way, and are not routed.
func (r *Router) SetCarried(all bool) {
	r.past = !all
	r.checkQuiet()
}

// Carried reports whether they do.
func (r *Router) Carried() bool { return !r.past }

// checkQuiet says so of each hold that has nothing to wait for any more.
func (r *Router) checkQuiet() {
	if r.past || len(r.holds) == 0 || r.follower != nil && r.follower.Busy() {
		return
	}
	oldest := r.generation
	for g := range r.underWay {
		if int32(g-oldest) < 0 {
			oldest = g
		}
	}
	for _, b := range r.Holds() {
		if h := r.holds[b]; !h.quiet && int32(h.generation-oldest) < 0 {
			h.quiet, h.told = true, true
			r.out = append(r.out, Out{Quiet: &b})
		}
	}
}

// holdsAny reports whether requests for one of the keys must wait.
func (r *Router) holdsAny(keys pslite.Keys) bool {
	for _, h := range r.holds {
		if h.touches(keys) {
			return true
		}
	}
	return false
}

// touches reports whether one of the ascending keys is held.
func (h *hold) touches(keys pslite.Keys) bool {
	n, at := keys.Len(), 0
	if n == 0 {
		return false
	}
	last := keys.At(n - 1)
	i := sort.Search(len(h.keys), func(i int) bool { return h.keys[i].Last >= keys.At(0) })
	for ; i < len(h.keys) && h.keys[i].First <= last; i++ {
		k := &h.keys[i]
		at += gallop(n-at, func(j int) bool { return keys.At(at+j) >= k.First })
		if at == n {
			return false
		}
		if keys.At(at) <= k.Last {
			return true
		}
	}
	return false
}

// gallop is sort.Search where the result is likely to be near 0.
func gallop(n int, found func(int) bool) int {
	step := 1
	for step < n && !found(step-1) {
		step *= 2
	}
	from := step / 2
	return from + sort.Search(min(step, n)-from, func(i int) bool { return found(from + i) })
}

// overlap reports whether two ascending lists have a key in common.
func overlap(a, b []plan.Keys) bool {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].Last < b[0].First:
			a = a[1:]
		case b[0].Last < a[0].First:
			b = b[1:]
		default:
			return true
		}
	}
	return false
}
