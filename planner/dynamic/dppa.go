package dynamic

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// DPPAOptions tune [DPPA]. Zero stands for the default.
type DPPAOptions struct {
	Batches   int     // remembered by Alg. 3 (64)
	Neighbors int     // r of Alg. 3 (4)
	Cutoff    float64 // c of Alg. 3 (0.25)
	// Imbalance triggers Alg. 4: it runs if the smallest load is below the largest by more than
	// this fraction of the largest (0.1).
	Imbalance float64
}

func (o DPPAOptions) withDefaults() DPPAOptions {
	o.Batches = cmp.Or(o.Batches, 64)
	o.Neighbors = cmp.Or(o.Neighbors, 4)
	o.Cutoff = cmp.Or(o.Cutoff, 0.25)
	o.Imbalance = cmp.Or(o.Imbalance, 0.1)
	return o
}

// A DPPA is the dynamic partition of DW23 section 5: Alg. 3 estimates which items the next batches
// will use, and if the loads of machines are out of balance Alg. 4 moves items from the machine
// with the largest load to that with the smallest.
//
// A machine's load f(D, P) is what all batches use of its items, in bytes; the size of an item is
// what its move sends. Where an item's users are plays no part.
type DPPA struct {
	o       DPPAOptions
	k       int
	past    correlation
	volume  []float64 // by item: f({D}, {p})
	touched []int32   // items with a volume
}

// NewDPPA returns a strategy that has seen nothing.
func NewDPPA(o Options) *DPPA {
	d := &DPPA{o: o.DPPA.withDefaults(), k: o.Machines}
	d.past = correlation{keep: max(d.o.Batches, o.Machines), neighbors: d.o.Neighbors, cutoff: d.o.Cutoff}
	return d
}

// Name implements Strategy.
func (*DPPA) Name() string { return "dppa" }

// Plan implements Strategy.
func (d *DPPA) Plan(it *Items, e *Epoch) ([]Move, error) {
	for i, b := range e.Batches {
		if !ascending(b.Pulled) || !ascending(b.Updated) {
			return nil, fmt.Errorf("batch %d has items that do not ascend", i)
		}
	}
	d.estimate(it, e)
	loads := make([]float64, d.k)
	for _, p := range d.touched {
		loads[it.Owner[p]] += d.volume[p]
	}
	most, least := busiest(loads)
	if loads[most]-loads[least] <= d.o.Imbalance*loads[most] {
		return nil, nil
	}
	return balance(it, d.touched, d.volume, loads), nil
}

// estimate remembers the batches, and sets the volumes of those until the next decision: for each
// machine as many as there were since the last one. Their vectors, the D_t of Alg. 3, are not known
// yet: the newest batch of each machine stands for them. It is compared with all others, and not with
// itself, which would outweigh them.
func (d *DPPA) estimate(it *Items, e *Epoch) {
	for _, p := range d.touched {
		d.volume[p] = 0
	}
	d.touched = d.touched[:0]
	d.volume = slices.Grow(d.volume, it.Len()-len(d.volume))[:it.Len()]
	var newest []Batch
	for i, b := range e.Batches {
		if slices.ContainsFunc(e.Batches[i+1:], func(later Batch) bool { return later.Machine == b.Machine }) {
			d.past.rememberBatch(b)
		} else {
			newest = append(newest, b)
		}
	}
	edges := d.past.edges(newest)
	for _, b := range newest {
		d.past.rememberBatch(b)
	}
	for _, x := range edges {
		if d.volume[x.item] == 0 {
			d.touched = append(d.touched, x.item)
		}
		d.volume[x.item] += x.weight * float64(it.Size[x.item]) * max(e.Steps, 1)
	}
}

// balance is DW23 Alg. 4. loads are the sums of the volumes of each machine's items; on return they
// are those after the moves.
//
// As printed, an item that was moved may move again; only its last move is carried out. Every move
// lowers the largest load by at least the item's size, or ends the loop, so it terminates.
func balance(it *Items, items []int32, volume, loads []float64) []Move {
	shelves := make([]shelf, len(loads))
	for _, p := range items {
		shelves[it.Owner[p]] = append(shelves[it.Owner[p]], weighed{volume[p], p})
	}
	for _, s := range shelves {
		slices.SortFunc(s, weighed.compare)
	}
	to := map[int32]int32{}
	var order []int32
	for len(loads) > 1 {
		most, least := busiest(loads) // lines 2 and 3
		at := shelves[most].nearest((loads[most] - loads[least]) / 2)
		if at < 0 {
			break
		}
		p := shelves[most][at] // line 4
		others := 0.0
		for j, l := range loads {
			if int32(j) != most && int32(j) != least {
				others = max(others, l)
			}
		}
		delta := loads[most] - max(loads[most]-p.volume, loads[least]+p.volume, others) // line 5
		if delta <= 0 || delta < float64(it.Size[p.item]) {                             // lines 6 and 7
			break
		}
		shelves[most] = slices.Delete(shelves[most], at, at+1) // line 8
		shelves[least].insert(p)
		loads[most] -= p.volume
		loads[least] += p.volume
		if _, again := to[p.item]; !again {
			order = append(order, p.item)
		}
		to[p.item] = least
	}
	moves := make([]Move, 0, len(order))
	for _, p := range order {
		if to[p] != it.Owner[p] {
			moves = append(moves, Move{p, to[p]})
		}
	}
	return moves
}

// weighed is an item and its volume.
type weighed struct {
	volume float64
	item   int32
}

func (a weighed) compare(b weighed) int {
	return cmp.Or(cmp.Compare(a.volume, b.volume), cmp.Compare(a.item, b.item))
}

// A shelf is one machine's items, by volume, then number.
type shelf []weighed

func (s *shelf) insert(w weighed) {
	at, _ := slices.BinarySearchFunc(*s, w, weighed.compare)
	*s = slices.Insert(*s, at, w)
}

// nearest returns the position of the item whose volume is nearest to half the difference of two
// loads, which makes them most alike; of several the one with the lowest number. It returns -1 if
// the shelf is empty.
func (s shelf) nearest(half float64) int {
	above, _ := slices.BinarySearchFunc(s, weighed{half, math.MinInt32}, weighed.compare)
	below := -1
	if above > 0 { // the first of those that are as large as the one before
		below, _ = slices.BinarySearchFunc(s, weighed{s[above-1].volume, math.MinInt32}, weighed.compare)
	}
	switch {
	case above == len(s):
		return below
	case below < 0:
		return above
	}
	up, down := math.Abs(2*s[above].volume-2*half), math.Abs(2*half-2*s[below].volume)
	if down < up || down == up && s[below].item < s[above].item {
		return below
	}
	return above
}
