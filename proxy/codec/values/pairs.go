package values

import (
	"bytes"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// pairs records how the pulls of one worker's customer from one server belong to its
// pushes to that server, for thresholded activations (DCT-MP): for each pull, the
// keys that were not pushed since and the masks of the rows that its answer had. A
// key that is pulled and pushed in turns pairs: its next push is the gradient for the
// values that the last pull brought. A key that was pulled twice before its push does
// not, since the gradient may be for either pull.
//
// Whether a worker works like that is not configured but observed: a worker earns
// credit by pulls that pushes followed, before an answer may come by rows, and loses
// it when the pattern breaks.
//
// pairs is guarded by its stream's mutex and lives as long as the link. If a mask is
// lost, the push passes whole; it is never changed in another way.
type pairs struct {
	budget *budget
	pulls  []*pull // the oldest first, at most mostPulls
	// credit rises by one with each pull that is followed by pushes of its keys, and
	// falls by lostCredit with each that is not.
	credit int
	most   int       // keys of the largest pull that was paired
	pulled [64]int32 // timestamps of the last pulls, plus one so that 0 is empty
	pushed [64]int32 // likewise of the last pushes
	nextIn [2]int    // the oldest entry of pulled and of pushed
	// roles says, for keys by which activations are exchanged through a server, on which
	// side of the exchange the worker is. A worker that pushed a key before it ever pulled
	// it (marked) has the activations, and pulls their gradients; with a key that it pulled
	// first it is the other way round. A forgotten key gets a new role by its next use.
	roles marks
	uses  []maskUse
}

// pull is one message that asked for keys' values.
type pull struct {
	timestamp int32
	keys      pslite.Keys // a copy
	pushed    sparse.Mask // the keys that were pushed since
	left      int         // how many were not
	masks     []rowsMask  // ascending by first
	bytes     int         // taken from the budget
	asked     bool        // its answer may come by rows
	paired    bool        // half of its keys were pushed, or more
	gone      bool        // it was dropped; an answer that still comes must not attach a mask
}

// rowsMask is the positions that gradients may have, for some successive keys of a
// pull.
type rowsMask struct {
	first, keys int
	kind        element.Kind
	width       int   // values of each key
	ends        []int // where the widths differ: the end of each key's values; else nil
	bits        sparse.Mask
}

// maskUse says which pull a pushed key belongs to, and which key of that pull it is; no
// pull if none or several qualify.
type maskUse struct {
	pull  *pull
	index int
	times int // pulls of the key without a push so far
}

const (
	// mostPulls bounds the pulls that are remembered because not all of their keys were
	// pushed.
	mostPulls = 16
	// mostAhead is how many pulls may be without their pushes while further ones are
	// asked by rows.
	mostAhead = 8
	// trusted is the credit from which on pulls are asked by rows, mostCredit the most
	// that can be earned, and lostCredit what a pull costs that no push follows.
	trusted, mostCredit, lostCredit = 2, 4, 2
	// mostLarger is how many times larger than those that paired a pull may be: a
	// worker that pulls everything is saving or evaluating its model, and must get all
	// of it.
	mostLarger = 2
)

// pullBytesOf is the memory that a pull of keys keys costs.
func pullBytesOf(keys int) int { return 160 + 8*keys + 8*sparse.Words(keys) }

// again reports whether a timestamp is one of the last, and records it: PS_RESEND
// repeats requests.
func (ps *pairs) again(last *[64]int32, which int, timestamp int32) bool {
	if slices.Contains(last[:], timestamp+1) {
		return true
	}
	last[ps.nextIn[which]] = timestamp + 1
	ps.nextIn[which] = (ps.nextIn[which] + 1) % len(last)
	return false
}

// pull records a pull, and returns it if its answer may come by rows; otherwise the
// reason says why not. A repetition of a pull returns the same one, or nothing.
func (ps *pairs) pull(timestamp int32, keys pslite.Keys) (*pull, Reason) {
	if ps.again(&ps.pulled, 0, timestamp) {
		for _, q := range ps.pulls {
			if q.timestamp == timestamp && q.asked && bytes.Equal(q.keys, keys) {
				return q, ""
			}
		}
		return nil, ReasonRepeat
	}
	cost := pullBytesOf(keys.Len())
	if !ps.budget.reserve(cost) {
		return nil, ReasonMemory
	}
	// The answer may lack values only if a push of the same keys will follow that can
	// bring the rest back in order: the pattern has held, few pulls are ahead of their
	// pushes, at most half of the keys are pulled for the second time, and the pull is
	// not much larger than those that paired.
	ahead, twice := 0, 0
	for _, q := range ps.pulls {
		if !q.paired {
			ahead++
		}
		twice += q.shares(keys)
	}
	q := &pull{timestamp: timestamp, keys: slices.Clone(keys), pushed: make(sparse.Mask, sparse.Words(keys.Len())), left: keys.Len(), bytes: cost}
	if len(ps.pulls) >= mostPulls {
		ps.drop(0)
	}
	ps.pulls = append(ps.pulls, q)
	q.asked = ps.credit >= trusted && ahead < mostAhead && 2*twice <= keys.Len() && keys.Len() <= mostLarger*ps.most
	if !q.asked {
		return nil, ReasonUnpaired
	}
	return q, ""
}

// drop forgets pull number i. One that hardly any push followed costs credit.
func (ps *pairs) drop(i int) {
	q := ps.pulls[i]
	if !q.paired {
		ps.credit = max(ps.credit-lostCredit, 0)
	}
	q.gone = true
	ps.budget.give(q.bytes)
	ps.pulls = slices.Delete(ps.pulls, i, i+1)
}

// clear forgets everything, and returns the memory.
func (ps *pairs) clear() {
	for len(ps.pulls) > 0 {
		ps.drop(0)
	}
	ps.roles.clear(ps.budget)
	*ps = pairs{budget: ps.budget, roles: ps.roles, uses: ps.uses[:0]}
}

// common calls do with the indices, in both, of the keys that two ascending lists have
// in common. Equal lists, the usual case, need no merge.
func common(a, b pslite.Keys, do func(i, j int)) {
	n, m := a.Len(), b.Len()
	if bytes.Equal(a, b) {
		for i := range n {
			do(i, i)
		}
		return
	}
	for i, j := 0, 0; i < n && j < m; {
		switch x, y := a.At(i), b.At(j); {
		case x < y:
			i++
		case x > y:
			j++
		default:
			do(i, j)
			i++
			j++
		}
	}
}

// shares counts the keys that a pull has in common with others and that were not pushed
// since.
func (q *pull) shares(keys pslite.Keys) (n int) {
	common(keys, q.keys, func(_, j int) {
		if !q.pushed.Has(j) {
			n++
		}
	})
	return n
}

// push records a push and returns for each of its keys which mask applies. The result
// is valid until the next push. A repetition gets no masks: what it must be is
// remembered elsewhere, see repeats.
func (ps *pairs) push(timestamp int32, keys pslite.Keys) []maskUse {
	ps.uses = slices.Grow(ps.uses[:0], keys.Len())[:keys.Len()]
	clear(ps.uses)
	if ps.again(&ps.pushed, 1, timestamp) {
		return ps.uses
	}
	for _, q := range ps.pulls {
		common(keys, q.keys, func(i, j int) {
			if q.pushed.Has(j) {
				return
			}
			u := &ps.uses[i]
			// A second pull of this key is without a push. The gradient may belong to
			// either, so it goes whole; it counts for the older pull.
			if u.times++; u.times > 1 {
				u.pull = nil
				return
			}
			u.pull, u.index = q, j
			q.pushed.Set(j)
			q.left--
		})
	}
	for i := len(ps.pulls) - 1; i >= 0; i-- {
		q := ps.pulls[i]
		if !q.paired && 2*q.left <= q.keys.Len() {
			q.paired = true
			ps.credit = min(ps.credit+1, mostCredit)
			ps.most = max(ps.most, q.keys.Len())
		}
		if q.left == 0 {
			ps.drop(i)
		}
	}
	return ps.uses
}

// masks reports whether the answer of some pull had rows.
func (ps *pairs) masks() bool {
	return slices.ContainsFunc(ps.pulls, func(q *pull) bool { return len(q.masks) > 0 })
}

// attach keeps the mask of an answer's rows; false if there is no memory, or the pull
// was forgotten.
func (ps *pairs) attach(q *pull, m rowsMask) bool {
	cost := 8 * (len(m.bits) + len(m.ends))
	if q.gone || !ps.budget.reserve(cost) {
		return false
	}
	q.bytes += cost
	q.masks = append(q.masks, m)
	return true
}

// copyTo adds the positions of a key with width values of a kind to a mask, from
// position first on, and reports whether there was a mask for the key.
func (u maskUse) copyTo(m sparse.Mask, first int, kind element.Kind, width int) bool {
	if u.pull == nil {
		return false
	}
	for i := range u.pull.masks {
		r := &u.pull.masks[i]
		at := u.index - r.first
		if at < 0 || at >= r.keys {
			continue
		}
		from, to := at*r.width, (at+1)*r.width
		if r.ends != nil {
			if from = 0; at > 0 {
				from = r.ends[at-1]
			}
			to = r.ends[at]
		}
		// The worker pushes other values than it pulled: the mask says nothing about
		// these.
		if r.kind != kind || to-from != width {
			return false
		}
		m.CopyRun(first, r.bits, from, width)
		return true
	}
	return false
}
