package dynamic

import (
	"fmt"
	"slices"
)

// Reshape continues with other machines: more of them, others that may own items, or links of other
// speeds. What is known of items stays. There must not be fewer machines than before.
func (l *Locality) Reshape(o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.Machines < l.k {
		return fmt.Errorf("%d machines, after %d", o.Machines, l.k)
	}
	l.shape(o)
	return nil
}

// shape adopts the machines of the options.
func (l *Locality) shape(o Options) {
	l.k, l.barred = o.Machines, o.Barred
	l.loads = append(l.loads, make([]float64, o.Machines-len(l.loads))...)
	l.extra = append(l.extra, make([]float64, o.Machines-len(l.extra))...)
	l.speed = make([]float64, o.Machines)
	sum := 0.0
	for i := range l.speed {
		l.speed[i] = 1
		if o.Speed != nil {
			l.speed[i] = 1 / o.Speed[i]
		}
		sum += l.speed[i]
	}
	for i := range l.speed {
		l.speed[i] *= float64(o.Machines) / sum
	}
}

// baseOf returns the bytes per step of other jobs at a machine, 0 if unknown.
func (l *Locality) baseOf(machine int) float64 {
	if machine < len(l.base) {
		return l.base[machine]
	}
	return 0
}

// Keep forgets all items but those given, which ascend, and renumbers them from 0. The caller does
// the same to its [Items].
func (l *Locality) Keep(items []int32) {
	known := items
	if n, _ := slices.BinarySearch(items, int32(len(l.owner))); n < len(items) {
		known = items[:n] // the others have not been planned for yet
	}
	for i, item := range known {
		l.owner[i], l.calm[i] = l.owner[item], l.calm[item]
	}
	l.owner, l.calm = l.owner[:len(known)], l.calm[:len(known)]
	l.rates.retainItems(known)
	clear(l.loads)
	for item := range int32(len(known)) {
		l.count(item)
	}
	if len(l.turns) > 0 {
		turns := make([]turn, 0, len(known))
		for _, item := range known {
			if int(item) < len(l.turns) {
				turns = append(turns, l.turns[item])
			}
		}
		l.turns = turns
	}
}

// retainItems forgets all items but some, which ascend.
func (r *rates) retainItems(items []int32) {
	for i, item := range items {
		r.start[i], r.length[i], r.room[i], r.seen[i] = r.start[item], r.length[item], r.room[item], r.seen[item]
	}
	n := len(items)
	r.start, r.length, r.room, r.seen = r.start[:n], r.length[:n], r.room[:n], r.seen[:n]
	r.compact()
}
