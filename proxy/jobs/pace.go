package jobs

import (
	"hash/maphash"
)

// pace spreads the repetitions of the router's own requests that are not acknowledged (PS_RESEND),
// so that a slow server gets one of each in a while and not one in every tick. It counts ticks, and
// remembers only requests that were asked about in the last one. The caller holds job.mu.
type pace struct {
	tick   uint64
	random func(worker, own int32, tries int) uint64 // jitter
	all    map[ownRequest]*repeated
}

// ownRequest identifies a request of the router's own: a worker's node id, and the timestamp.
type ownRequest struct{ worker, own int32 }

// repeated is the state of one request.
type repeated struct {
	tries      int
	due, asked uint64 // ticks
}

// mostPause is the maximum pause between two repetitions in ticks, without jitter, which adds at
// most half of it.
const mostPause = 4

func newPace() *pace {
	seed := maphash.MakeSeed()
	return &pace{all: map[ownRequest]*repeated{}, random: func(worker, own int32, tries int) uint64 {
		return maphash.Comparable(seed, [3]int32{worker, own, int32(tries)})
	}}
}

// nextTick begins a tick, and forgets requests that were not asked about in the previous one: they
// have been acknowledged.
func (p *pace) nextTick() {
	for k, r := range p.all {
		if r.asked != p.tick {
			delete(p.all, k)
		}
	}
	p.tick++
}

// again reports whether a request is to be repeated in this tick: for the first time in the tick
// after it was first asked about, then with pauses that double up to mostPause.
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
