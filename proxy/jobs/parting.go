package jobs

import (
	"cmp"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
)

// AutoParts, as [Options.Parts], means that the number of parts is found by measuring steps.
const AutoParts = -1

const (
	// partFrom is the size in bytes from which on a value is worth dividing, and partBytes the
	// minimum size of each part.
	partFrom  = 1 << 20
	partBytes = 1 << 16
	// partAfter is the number of pushes after which a key is considered: the first ones may carry
	// initial values.
	partAfter = 3
	// mostAutoParts bounds the numbers of parts that are tried. While a job's values change from n
	// parts to n/2, one request may have keys in both and whole keys, which takes a layer each (see
	// package route).
	mostAutoParts = 8
	// maxPartValues bounds the keys that are followed.
	maxPartValues = 4096
	// A number of parts is measured over at least partSteps steps and partTime, or over at least
	// fewPartSteps that come within partPatience. The first partSkip steps are left out: they began
	// with the previous number.
	partSkip, partSteps, fewPartSteps = 2, 8, 3
	partTime, partPatience            = 2 * time.Second, 30 * time.Second
	maxPartTries                      = 5
)

// parting decides into how many parts the large values of a job are divided, for those servers
// whose keys this host moves. It is a state machine: pushes of workers and the time go in, moves
// come out. job.mu guards it.
//
// With a fixed number of parts, target is that number and every large value is moved to it. With
// AutoParts it goes through the numbers that a [plan.PartSearch] proposes: it moves all keys to the
// number, measures steps once they have arrived, feeds the median to the search, and asks for the
// next number. When the search is over (found), the keys move to its result and stay there.
//
// Moves that fail for a passing reason are tried again after a pause that doubles, in maxPartTries
// attempts. All moves that are asked for between two failures are one attempt: they mostly fail
// together, and for one reason. Anything that shows that parts are unwanted or cannot work sets off.
//
// Invariants: target is 0 until the first number of parts is chosen. Once off is set, nothing more
// is divided, and values in parts stay so.
type parting struct {
	wanted int                   // parts, AutoParts, or 0
	values map[uint64]*partValue // large values by key; at most maxPartValues
	target int                   // current number of parts
	search *plan.PartSearch      // of AutoParts; nil before the first number
	found  bool                  // the search is over
	step   partStep
	again  time.Time // no move before
	round  int       // number of the current attempt
	tries  int       // failed attempts since the last move that succeeded
	off    PartsGap  // why nothing is divided any more
}

// PartsGap is why a job's large values are left alone; the zero value means that they are not.
// Reason is a fixed word, Why a sentence, and Do what an operator can do about it.
type PartsGap struct {
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"`
	Do     string `json:"do,omitempty"`
}

// partValue is a key with a large value.
type partValue struct {
	bytes  int
	pushes int
	put    int32 // the owner that parting has given it; 0: none
}

// partStep measures steps: the time between two pushes of the same key by the same worker.
type partStep struct {
	key    uint64
	worker int32
	of     int // the number of parts being measured; 0: none
	skip   int // steps left to skip
	began  time.Time
	last   time.Time // end of the last step
	took   []time.Duration
}

// partMove is a key that is to get another owner.
type partMove struct {
	key      uint64
	from, to int32
}

// notePush notes a push of a key with a value of that many bytes.
func (p *parting) notePush(key uint64, bytes int, worker int32, now time.Time) {
	v := p.values[key]
	if v == nil {
		if bytes < partFrom || len(p.values) >= maxPartValues {
			return
		}
		v = &partValue{bytes: bytes}
		if p.values == nil {
			p.values = map[uint64]*partValue{}
		}
		p.values[key] = v
	}
	v.pushes++
	// The first push after the measurement began chooses the key and the worker that is followed.
	if s := &p.step; s.of > 0 && (s.worker < 0 || key == s.key && worker == s.worker) {
		s.key, s.worker = key, worker
		s.endStep(now)
	}
}

// endStep notes the end of a step.
func (s *partStep) endStep(now time.Time) {
	switch {
	case s.skip > 0:
		if s.skip--; s.skip == 0 {
			s.began = now
		}
	default:
		s.took = append(s.took, now.Sub(s.last))
	}
	s.last = now
}

// median returns the median duration of a step, and false while too few were measured. The median
// is not moved by single slow steps, as at a checkpoint.
func (s *partStep) median(now time.Time) (took time.Duration, ok bool) {
	n, since := len(s.took), now.Sub(s.began)
	if s.skip > 0 || n < fewPartSteps || (n < partSteps || since < partTime) && since < partPatience {
		return 0, false
	}
	return slices.Sorted(slices.Values(s.took))[n/2], true
}

// known returns the keys that were pushed often enough, ascending.
func (p *parting) known() (keys []uint64) {
	for key, v := range p.values {
		if v.pushes >= partAfter {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// next returns the keys to move now. moves reports whether this host moves a server's keys, and
// busy whether a key is moving. A key that parting had divided and that is whole again was brought
// home by somebody, which ends the parting: it must not fight an operator.
func (p *parting) next(now time.Time, servers int, owner func(uint64) int32, moves func(int32) bool, busy func(uint64) bool) (all []partMove) {
	keys := slices.DeleteFunc(p.known(), func(key uint64) bool {
		at := owner(key)
		if v := p.values[key]; plan.PartsOf(at) == 0 && v.put > 0 && plan.PartsOf(v.put) > 0 && !busy(key) {
			p.stop("restored", "keys were restored home, or a plan was rolled back", "")
		}
		return !moves(whole(key, at, servers))
	})
	if p.off.Reason != "" || len(keys) == 0 || !p.choose(now, servers, keys, owner) || now.Before(p.again) {
		return nil
	}
	// All keys must have the number of parts that is measured before the measurement begins.
	settled := true
	for _, key := range keys {
		from, to := owner(key), p.ownerFor(key, servers)
		if from == to {
			continue
		}
		settled = false
		if !busy(key) {
			all = append(all, partMove{key, from, to})
		}
	}
	if settled && p.search != nil && !p.found && p.step.of != p.target {
		p.step = partStep{of: p.target, skip: partSkip, worker: -1}
	}
	return all
}

// whole returns the server that decides about a key: the owner, or for a key in parts its home.
// Moves of the key are carried out by that server's host.
func whole(key uint64, owner int32, servers int) int32 {
	if plan.PartsOf(owner) > 0 {
		return plan.HomeOf(key, servers)
	}
	return owner
}

// choose updates the target, and returns false while none can be chosen. With AutoParts it feeds
// the measured time of the current number into the search, which needs theta0 + theta1/P + theta2 P
// to fit; see [plan.PartSearch].
func (p *parting) choose(now time.Time, servers int, keys []uint64, owner func(uint64) int32) bool {
	if p.wanted != AutoParts {
		p.target = p.wanted
		return true
	}
	// Searching makes sense only for values that make one server hot.
	if p.search == nil {
		at := func(k uint64) int32 { return whole(k, owner(k), servers) }
		if slices.ContainsFunc(p.known(), func(k uint64) bool { return at(k) != at(keys[0]) }) {
			p.stop("spread", "large values are on several servers already", "--split P stores each in parts nevertheless")
			return false
		}
		most := min(servers, mostAutoParts)
		p.search = plan.NewPartSearch(most, most)
	}
	if took, ok := p.step.median(now); ok && !p.found && p.step.of == p.target {
		p.search.Measured(took.Seconds())
	}
	if next, more := p.search.Next(); more {
		p.target = next
		return true
	}
	p.target, _ = p.search.Result()
	p.found = true
	return true
}

// ownerFor returns the owner that a key is to have: parts of at least partBytes each, and its home
// where that makes less than two.
func (p *parting) ownerFor(key uint64, servers int) int32 {
	n := min(p.target, servers, plan.MaxParts, p.values[key].bytes/partBytes)
	if _, ok := plan.PartKey(key, 0, max(n, 2), servers); !ok || n < 2 {
		return plan.HomeOf(key, servers)
	}
	return plan.Parted(n)
}

// moved notes that a key has its new owner.
func (p *parting) moved(m partMove) {
	p.tries = 0
	if v := p.values[m.key]; v != nil {
		v.put = m.to
	}
}

// failed notes that a move of an attempt has failed for a reason that may pass, and delays the next
// attempt. Of the moves of an attempt only the first that fails counts.
func (p *parting) failed(now time.Time, round int, why error) {
	if round < p.round {
		return
	}
	p.round++
	if p.tries++; p.tries >= maxPartTries {
		p.stop("busy", why.Error(), "")
		return
	}
	p.again = now.Add(time.Second << (p.tries - 1))
}

// pause delays the next move by pastAfter: now none is possible, as while connections are missing.
func (p *parting) pause(now time.Time) { p.again = now.Add(pastAfter) }

// stop leaves everything as it is from now on. The first reason is kept.
func (p *parting) stop(reason, why, do string) {
	p.off = PartsGap{cmp.Or(p.off.Reason, reason), cmp.Or(p.off.Why, why), cmp.Or(p.off.Do, do)}
	p.step = partStep{}
}

// PartsState describes the values of a job that are in parts, on one host.
type PartsState struct {
	Wanted int `json:"wanted"` // parts; AutoParts: found by measuring
	Keys   int `json:"keys"`   // in parts, whoever divided them
	Large  int `json:"large"`  // keys with large values that this host's workers push
	// Target is the number of parts that this host gives the keys that it moves. Settled means that
	// no other number will be tried.
	Target  int               `json:"target,omitempty"`
	Settled bool              `json:"settled"`
	Samples []plan.PartSample `json:"samples,omitempty"` // measured steps
	Fit     *plan.PartFit     `json:"fit,omitempty"`     // of theta0 + theta1/P + theta2 P to the samples
	Not     PartsGap          `json:"not"`               // why large values are left alone
}

// state returns the state for status.
func (p *parting) state() PartsState {
	s := PartsState{Wanted: p.wanted, Large: len(p.values), Target: p.target, Settled: p.wanted != AutoParts || p.found, Not: p.off}
	if p.search != nil {
		s.Samples = slices.Clone(p.search.Samples())
		if _, fit := p.search.Result(); len(s.Samples) > 1 {
			s.Fit = &fit
		}
	}
	if s.Not.Reason == "" && s.Large == 0 {
		s.Not = PartsGap{Reason: "small", Why: "no worker on this host has pushed a value of 1 MiB or more with a known length"}
	}
	return s
}
