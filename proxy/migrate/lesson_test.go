package migrate

import (
	"cmp"
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy/route"
)

// memoryJournal is what a host knows of where keys are, for a store that was lost:
// the model of package jobs' journal. It outlives a site.
type memoryJournal struct {
	Keeps  bool // there is one
	Owners [2]uint8
	Holds  []Held        // ascending
	Done   []route.Batch // released here; ascending
}

func compareBatches(a, b route.Batch) int {
	return cmp.Or(cmp.Compare(a.Mover, b.Mover), cmp.Compare(a.Number, b.Number))
}

func (j *memoryJournal) at(b route.Batch) (int, bool) {
	return slices.BinarySearchFunc(j.Holds, b, func(h Held, b route.Batch) int { return compareBatches(h.Batch, b) })
}

// Held implements route.Keeper.
func (j *memoryJournal) Held(b route.Batch, keys []plan.Keys) {
	if _, ok := j.at(b); !ok && !slices.Contains(j.Done, b) {
		j.Holds = with(j.Holds, Held{b, keys}, func(a, b Held) int { return compareBatches(a.Batch, b.Batch) })
	}
}

// Released implements route.Keeper.
func (j *memoryJournal) Released(b route.Batch, owner int32) {
	i, ok := j.at(b)
	if !ok {
		return
	}
	for k, key := range modelKeys {
		if owner != route.Unchanged && holds(j.Holds[i].Keys, key) {
			j.Owners[k] = uint8(owner)
		}
	}
	j.Holds = slices.Delete(slices.Clone(j.Holds), i, i+1)
	j.Done = with(j.Done, b, compareBatches)
}

func holds(keys []plan.Keys, key uint64) bool {
	return slices.ContainsFunc(keys, func(k plan.Keys) bool { return k.First <= key && key <= k.Last })
}

// opened begins the journal again from the owners that a site has received.
func (j *memoryJournal) opened(r *route.Router) {
	if !j.Keeps {
		return
	}
	for k, key := range modelKeys {
		j.Owners[k] = uint8(r.Table().Owner(key))
	}
	j.Holds = nil
	for _, b := range r.Holds() {
		j.Held(b, r.Held(b))
	}
}

// lesson is what a host teaches, as a number: the owners, which keys it holds, and
// that it has taught.
func (j *memoryJournal) lesson(f fault) uint8 {
	n := 16 + j.Owners[0] + 2*j.Owners[1]
	for _, h := range j.Holds {
		for k, key := range modelKeys {
			if holds(h.Keys, key) && f != teachesHeld {
				n |= 4 << k
			}
		}
	}
	return n
}

// learn takes over what hosts have taught, if it is enough.
func (m *model) learn(n *world) {
	var lessons []plan.Lesson
	for i, number := range n.Lessons {
		if number == 0 {
			continue
		}
		l := plan.Lesson{Sites: siteNames[i : i+1], AllSites: siteNames[:]}
		for k, key := range modelKeys {
			l.Owners.Assign(plan.One(key), int32(number>>k&1), 2)
			if number>>(2+k)&1 != 0 {
				l.Held.Set(plan.Range{Keys: plan.One(key)})
			}
		}
		lessons = append(lessons, l)
	}
	owners, waits := plan.Merge(lessons, 2)
	if len(waits) > 0 {
		return
	}
	for k, key := range modelKeys {
		n.Owners[k] = uint8(max(0, owners.Owner(key))) // both are at home with server 0
	}
	n.Lost, n.Lessons = 0, [2]uint8{}
}
