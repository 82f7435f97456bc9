package train

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// step returns the ids that a worker pushes at a step, in the order of their keys.
// The list is valid until the next call. Its random numbers are seeded by rank and
// step, so that any step can be computed without those before it.
func (c *counter) step(rank, step int) []int32 {
	c.drawIDs(rank, step)
	slices.SortFunc(c.ids, func(a, b int32) int { return int(c.place[a]) - int(c.place[b]) })
	return c.ids
}

// drawIDs draws the ids of a step, in no order.
func (c *counter) drawIDs(rank, step int) []int32 {
	r := rand.New(rand.NewPCG(c.seed^uint64(rank)<<32, uint64(step)))
	era := 0
	if c.Wander > 0 {
		era = step / c.Wander
	}
	// Every era moves a worker's favourites to another place, where placements made
	// before are wrong.
	shift := rand.New(rand.NewPCG(c.seed+1, uint64(rank)<<32|uint64(era))).IntN(c.Keys)
	c.drawn++
	c.ids = c.ids[:0]
	// Drawn without repetition: a request has each key once.
	for tries := 0; len(c.ids) < c.Batch; tries++ {
		id := c.draw(r, shift, tries)
		if c.chosen[id] != c.drawn {
			c.chosen[id] = c.drawn
			c.ids = append(c.ids, id)
		}
	}
	return c.ids
}

// draw returns an id that a worker prefers; its favourites begin at shift. Drawing
// the last ids of a batch from a steep distribution would take too long, as most
// draws repeat: they are drawn evenly.
func (c *counter) draw(r *rand.Rand, shift, tries int) int32 {
	among := c.among()
	if c.Favourites > 0 {
		// The first part of the batch is common: its favourites are not shifted, so
		// all workers share them.
		if float64(len(c.ids)) < c.Common*float64(c.Batch) {
			shift = 0
		}
	}
	at := c.find(r.Float64())
	if len(c.ids) > 2*c.Batch/3 && (c.Favourites == 0 || tries > 8*c.Batch) {
		at = r.IntN(among)
	}
	return int32((min(at, among-1) + shift) % c.Keys)
}

// among returns how many ids are drawn from.
func (c *counter) among() int { return cmp.Or(c.Favourites, c.Keys) }

// prepareGuide divides what is drawn into as many equal parts as there are ids, and notes for each
// the first id that it may mean.
func (c *counter) prepareGuide() {
	n := c.among()
	c.guide = make([]int32, n+1)
	at := 0
	for part := range n {
		for at < n-1 && c.favour[at] < float64(part)/float64(n)*c.favour[n-1] {
			at++
		}
		c.guide[part] = int32(at)
	}
	c.guide[n] = int32(n - 1)
}

// find returns the first id up to which a share of all preferences lies; share is below 1. It is a
// bisection within one part of the guide.
func (c *counter) find(share float64) int {
	n := c.among()
	part := min(int(share*float64(n)), n-1)
	first, last := max(c.guide[part]-1, 0), min(c.guide[part+1]+1, int32(n-1))
	at, _ := slices.BinarySearch(c.favour[first:last+1], share*c.favour[n-1])
	return int(first) + at
}
