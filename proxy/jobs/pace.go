package jobs

import (
	"hash/maphash"
)

// pace says when the proxies' own requests to servers that nobody has acknowledged
// go again: a server that is slow has one letter of each waiting, not one a tick.
// It counts ticks, and knows those requests alone that were asked about in the last
// one. Whoever calls it holds a lock.
type pace struct {
	tick   uint64
	random func(worker, own int32, tries int) uint64
	all    map[ownRequest]*repeated
}

type ownRequest struct{ worker, own int32 }

// repeated is the state of a letter that is sent again until it is answered.
type repeated struct {
	tries      int
	due, asked uint64 // ticks
}

// mostPause is the largest number of ticks between two repetitions, without jitter,
// which adds at most half of it.
const mostPause = 4

func newPace() *pace {
	seed := maphash.MakeSeed()
	return &pace{all: map[ownRequest]*repeated{}, random: func(worker, own int32, tries int) uint64 {
		return maphash.Comparable(seed, [3]int32{worker, own, int32(tries)})
	}}
}

// nextTick begins a tick and forgets what was not asked about in the one before.
func (p *pace) nextTick() {
	for k, r := range p.all {
		if r.asked != p.tick {
			delete(p.all, k)
		}
	}
	p.tick++
}

// again reports whether a request is to be said again in this tick: first in the one
// after it was asked about first, then after pauses that are twice as long each
// time.
func (p *pace) again(worker, own int32) bool {
	k := ownRequest{worker, own}
	r := p.all[k]
	if r == nil {
		r = &repeated{due: p.tick + 1}
		p.all[k] = r
	}
	r.asked = p.tick
	if p.tick < r.due {
		return false
	}
	pause := min(uint64(2)<<min(r.tries, 8), mostPause)
	r.tries++
	r.due = p.tick + pause + p.random(worker, own, r.tries)%(pause/2+1)
	return true
}
