package route

import (
	"cmp"
	"maps"
	"slices"
	"sort"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// hold is a set of keys for which new requests wait.
type hold struct {
	keys       []plan.Keys // ascending
	generation uint32      // of the last requests to wait for
	quiet      bool        // its quiet was reported
	told       bool        // it was reported at some time, by this router or one before it
}

// Keeper persists, for the router of the next proxy, which keys are held and where they went. It is
// called before the change takes effect, so after a kill the next router holds too much rather than
// too little.
type Keeper interface {
	Held(b Batch, keys []plan.Keys)
	Released(b Batch, owner int32)
}

// Keep sets the router's keeper.
func (r *Router) Keep(k Keeper) { r.keeper = k }

// Follower is the router's view of what moves along with keys beside their values: what
// codecs have held back of the workers' pushes follows the keys to their new owners. It sends
// messages that the router does not see. Its methods are called under the caller's lock; they
// may look up owners in the table, and must not call the router otherwise.
type Follower interface {
	// Follow is called before any request goes by the new table. These ranges of keys may have
	// other owners now; nil means any key.
	Follow(keys []plan.Keys)
	// Busy reports whether a message of the follower is in flight. While one is, no hold becomes
	// quiet.
	Busy() bool
	// Waits reports whether something of the workers' pushes to these keys is held back.
	Waits(keys []plan.Keys) bool
}

// SetFollower sets the router's follower.
func (r *Router) SetFollower(f Follower) { r.follower = f }

// Waits reports whether something of the workers' pushes to these keys is held back, which could
// not go along into parts.
func (r *Router) Waits(keys []plan.Keys) bool { return r.follower != nil && r.follower.Waits(keys) }

// follow reports to the follower that owners have changed; nil means any.
func (r *Router) follow(keys []plan.Keys) {
	if r.follower != nil {
		r.follower.Follow(keys)
	}
}

// Still reports whether no key can be on its way between servers: the router is open, and no hold
// has been reported as quiet, after which its mover may move the keys at any moment.
func (r *Router) Still() bool {
	for _, h := range r.holds {
		if h.told {
			return false
		}
	}
	return !r.closed
}

// Hold makes new requests for the keys, which are ascending, wait until the batch is released. When
// the last request from before is answered, Out reports that the batch is quiet. It returns false,
// and holds nothing, where another batch has one of the keys. Repeated for the same batch it only
// has quiet reported again.
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
	// While the router is closed it does not know what one before it has reported, so told is
	// assumed.
	r.holds[b] = &hold{keys: keys, generation: r.generation, told: r.closed}
	if r.keeper != nil {
		r.keeper.Held(b, keys)
	}
	r.generation++
	r.checkQuiet()
	return true
}

// Held returns the keys of a batch, and nil where it is not held.
func (r *Router) Held(b Batch) []plan.Keys {
	if h := r.holds[b]; h != nil {
		return h.keys
	}
	return nil
}

// Quiet reports whether the batch is held and was reported to be quiet.
func (r *Router) Quiet(b Batch) bool { return r.holds[b] != nil && r.holds[b].quiet }

// Holds returns the batches that are held, ordered by mover and number.
func (r *Router) Holds() []Batch {
	return slices.SortedFunc(maps.Keys(r.holds), func(a, b Batch) int {
		return cmp.Or(cmp.Compare(a.Mover, b.Mover), cmp.Compare(a.Number, b.Number))
	})
}

// HoldsForOthers reports whether a batch of another mover than self has one of the keys, which are
// ascending.
func (r *Router) HoldsForOthers(self string, keys []plan.Keys) bool {
	for b, h := range r.holds {
		if b.Mover != self && overlap(h.keys, keys) {
			return true
		}
	}
	return false
}

// Release ends a hold and sends the requests that waited for it. The keys belong to owner from now
// on; with [Unchanged] they stay with the old one. A batch that is not held is ignored, so a
// release may be repeated.
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
		if r.table == r.placed {
			r.table = r.placed.Clone()
		}
		r.table.Set(changes)
		r.follow(h.keys)
	}
	r.flush()
}

// Unchanged is the owner in a release of keys that did not move.
const Unchanged int32 = -2

// SetCarried sets whether all requests and answers of this host's workers pass through this proxy.
// While they do not, no batch becomes quiet: requests that the router does not see could be in
// flight, and are not held.
func (r *Router) SetCarried(all bool) {
	r.past = !all
	r.checkQuiet()
}

// Carried reports what SetCarried was last called with; it is true at first.
func (r *Router) Carried() bool { return !r.past }

// checkQuiet reports each hold that has nothing more to wait for. It is called whenever the count
// of a generation has dropped or a hold was added.
func (r *Router) checkQuiet() {
	if r.past || len(r.holds) == 0 || r.follower != nil && r.follower.Busy() {
		return
	}
	// Generations wrap, so they are compared by the sign of their difference.
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

// holdsAny reports whether one of the keys is held.
func (r *Router) holdsAny(keys pslite.Keys) bool {
	for _, h := range r.holds {
		if h.touches(keys) {
			return true
		}
	}
	return false
}

// touches reports whether one of the ascending keys is held. It walks both sorted lists, and
// gallops over keys between two held ranges.
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

// gallop is sort.Search for results that are likely to be small: it takes O(log result) calls
// instead of O(log n).
func gallop(n int, found func(int) bool) int {
	step := 1
	for step < n && !found(step-1) {
		step *= 2
	}
	from := step / 2
	return from + sort.Search(min(step, n)-from, func(i int) bool { return found(from + i) })
}

// overlap reports whether two ascending lists of ranges have a key in common.
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
