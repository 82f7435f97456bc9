package jobs

import (
	"cmp"
	"slices"
	"time"

	"github.com/psidecar/psidecar/planner/plan"
)

// AutoParts, as [Options.Parts], has the number of parts be found by measured steps.
const AutoParts = -1

const (
	// partFrom is how many bytes a value has that is worth parts, and partBytes how many
	// each of its parts has at least.
	partFrom  = 1 << 20
	partBytes = 1 << 16
	// partAfter is after how many pushes of a key it is known what becomes of it: the
	// first may have initial values.
	partAfter = 3
	// mostAutoParts bounds the numbers of parts that are tried. While a value changes from
	// n parts to n/2, a request may be for keys in both, and for whole ones.
	mostAutoParts = 8
	// maxPartValues bounds the keys that are looked at.
	maxPartValues = 4096
	// A number of parts is measured over at least this many steps and this long, or
	// over the steps that come in partPatience, but not over none. The first two are
	// the last of before.
	partSkip, partSteps, fewPartSteps = 2, 8, 3
	partTime, partPatience            = 2 * time.Second, 30 * time.Second
	maxPartTries                      = 5
)

// parting decides into how many parts the large values of a job go whose servers' keys
// this host moves. It is a state machine: what workers push goes in, and the time; out
// come moves. job.mu guards it.
//
// Invariants: target is 0 until the first number of parts is known. Once off is set,
// nothing more is divided; values in parts stay so.
type parting struct {
	wanted int // parts, AutoParts, or 0
	values map[uint64]*partValue
	target int
	search *plan.PartSearch // of AutoParts; nil before the first number
	found  bool             // the search is over
	step   partStep
	again  time.Time // no move before
	tries  int       // that came to nothing, since the last that did
	off    PartsGap
}

// PartsGap is why a job's large values are left alone; zero: they are not.
type PartsGap struct {
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"`
	Do     string `json:"do,omitempty"`
}

// partValue is a key with a large value.
type partValue struct {
	bytes  int
	pushes int
	put    int32 // the owner that it got here last; 0: none
}

// partStep measures steps: a worker's pushes of a key.
type partStep struct {
	key    uint64
	worker int32
	of     int // the number of parts being measured; 0: none is
	skip   int
	began  time.Time
	last   time.Time
	took   []time.Duration
}

// partMove is a key that is to have another owner.
type partMove struct {
	key      uint64
	from, to int32
}

// notePush records a push of a key, with its bytes.
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
	if s := &p.step; s.of > 0 && (s.worker < 0 || key == s.key && worker == s.worker) {
		s.key, s.worker = key, worker
		s.endStep(now)
	}
}

// endStep takes in the end of a step.
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

// median returns how long a step takes, ok where enough were measured.
func (s *partStep) median(now time.Time) (took time.Duration, ok bool) {
	n, since := len(s.took), now.Sub(s.began)
	if s.skip > 0 || n < fewPartSteps || (n < partSteps || since < partTime) && since < partPatience {
		return 0, false
	}
	return slices.Sorted(slices.Values(s.took))[n/2], true
}

// known returns the keys that have been pushed often enough, ascending.
func (p *parting) known() (keys []uint64) {
	for key, v := range p.values {
		if v.pushes >= partAfter {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// next returns the keys to move now. moves says whether this host moves a server's keys,
// and busy whether a key is moving.
func (p *parting) next(now time.Time, servers int, owner func(uint64) int32, moves func(int32) bool, busy func(uint64) bool) (all []partMove) {
	keys := slices.DeleteFunc(p.known(), func(key uint64) bool {
		at := owner(key)
		if v := p.values[key]; plan.PartsOf(at) == 0 && v.put > 0 && plan.PartsOf(v.put) > 0 && !busy(key) {
			p.stop("restored", "keys were brought home, or a plan was taken back", "")
		}
		return !moves(whole(key, at, servers))
	})
	if p.off.Reason != "" || len(keys) == 0 || !p.choose(now, servers, keys, owner) || now.Before(p.again) {
		return nil
	}
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

// whole returns the server of a key with that owner, where it is in parts its home: whoever
// moves that server's keys decides on its parts.
func whole(key uint64, owner int32, servers int) int32 {
	if plan.PartsOf(owner) > 0 {
		return plan.HomeOf(key, servers)
	}
	return owner
}

// choose finds out how many parts there are to be; false: it is not known yet.
func (p *parting) choose(now time.Time, servers int, keys []uint64, owner func(uint64) int32) bool {
	if p.wanted != AutoParts {
		p.target = p.wanted
		return true
	}
	if p.search == nil {
		at := func(k uint64) int32 { return whole(k, owner(k), servers) }
		if slices.ContainsFunc(p.known(), func(k uint64) bool { return at(k) != at(keys[0]) }) {
			p.stop("spread", "large values are on several servers already", "--split P has each in parts all the same")
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

// ownerFor returns the owner that a key is to have: its home where it is to be whole.
func (p *parting) ownerFor(key uint64, servers int) int32 {
	n := min(p.target, servers, plan.MaxParts, p.values[key].bytes/partBytes)
	if _, ok := plan.PartKey(key, 0, max(n, 2), servers); !ok || n < 2 {
		return plan.HomeOf(key, servers)
	}
	return plan.Parted(n)
}

// moved takes in that a key has its new owner.
func (p *parting) moved(m partMove) {
	p.tries = 0
	if v := p.values[m.key]; v != nil {
		v.put = m.to
	}
}

// failed takes in that it has not, and that this may be otherwise later.
func (p *parting) failed(now time.Time, why error) {
	if p.tries++; p.tries >= maxPartTries {
		p.stop("busy", why.Error(), "")
		return
	}
	p.again = now.Add(time.Second << (p.tries - 1))
}

// stop leaves all as it is from now on.
func (p *parting) stop(reason, why, do string) {
	p.off = PartsGap{cmp.Or(p.off.Reason, reason), cmp.Or(p.off.Why, why), cmp.Or(p.off.Do, do)}
	p.step = partStep{}
}

// PartsState lists the values of a job that are in parts, on one host.
type PartsState struct {
	Wanted int `json:"wanted"` // parts; AutoParts: as steps are measured
	Keys   int `json:"keys"`   // that are in parts, whoever has put them there
	Large  int `json:"large"`  // keys with large values that this host's workers push
	// Target is into how many parts this host puts the keys that it moves, and Settled
	// that no other number is tried any more.
	Target  int               `json:"target,omitempty"`
	Settled bool              `json:"settled"`
	Samples []plan.PartSample `json:"samples,omitempty"` // steps that were measured
	Fit     *plan.PartFit     `json:"fit,omitempty"`     // of theta0 + theta1/P + theta2 P to them
	Not     PartsGap          `json:"not"`               // why large values are left alone
}

func (p *parting) state() PartsState {
	s := PartsState{Wanted: p.wanted, Large: len(p.values), Target: p.target, Settled: p.wanted != AutoParts || p.found, Not: p.off}
	if p.search != nil {
		s.Samples = slices.Clone(p.search.Samples())
		if _, fit := p.search.Result(); len(s.Samples) > 1 {
			s.Fit = &fit
		}
	}
	if s.Not.Reason == "" && s.Large == 0 {
		s.Not = PartsGap{Reason: "small", Why: "no worker of this host has pushed a value of 1 MiB or more whose length a message says"}
	}
	return s
}
