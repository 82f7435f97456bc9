// Package migrate moves keys from server to server while a job runs. It is a
// state machine, as package route is, without sockets, clocks and goroutines.
//
// A [Site] is one host's part, over the host's [route.Router]. To move keys, a
// site tells all others to hold requests for them; when nothing for them is
// under way anywhere it pulls their values from the old owner, pushes them to
// the new one and pulls them again until they are the same to the last bit; it
// has the new owner recorded in the planner's store, and then tells all to
// release. Up to the record the move can be given up at any moment, and the
// keys are where they were; from then on they are with the new owner.
//
// A site that was killed begins as a joining one: nothing passes until all others
// have sent it their holds, and the store the owners of keys. The store decides the
// fate of its own moves: those that are recorded are finished, others given up, and
// the other sites, which still hold, are released accordingly.
//
// In come messages of other sites, answers of the store, moves to begin; out
// goes what [Site.Out] returns. The proxy's shell calls it.
package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/route"
)

// Site is one host's part in moving a job's keys. It has no lock, clock or goroutine:
// one caller at a time tells it what has come, and does what Out says.
//
// Invariants, between two calls:
//   - moves has the moves of this site that are not over, by their batches' numbers, and
//     Router holds the keys of each; none of them is in two.
//   - last is the highest number that was given: no later batch has a number of before.
//   - while asked is not nil no move begins and Router lets no request pass; released is
//     empty otherwise.
//   - a move is decided by the store alone: before Recorded its keys are the old owner's,
//     whatever the new one has of them.
type Site struct {
	Router *route.Router
	self   string
	others map[string]bool // the sites of other hosts
	moves  map[uint64]*moving
	last   uint64          // number of the last batch
	asked  map[string]bool // those that have not answered Join yet; nil: joined
	// released is what was released while the site joined: what the store said
	// when it was asked may be older.
	released []plan.Range
	// parting are the batches of others that are held here whose keys go into parts, and
	// what they will have for an owner.
	parting map[route.Batch]int32
	out     []Out
}

// New returns a site of that name that has joined: nothing has been displaced
// in the job yet, or all is known. Numbers of its batches follow number, which
// must rise from one incarnation of a site to the next.
func New(self string, r *route.Router, number uint64) *Site {
	return &Site{Router: r, self: self, others: map[string]bool{}, moves: map[uint64]*moving{}, last: number, parting: map[route.Batch]int32{}}
}

// Name returns the site's own name.
func (s *Site) Name() string { return s.self }

// Last returns the number of the batch that was begun last.
func (s *Site) Last() uint64 { return s.last }

// SetOthers says which other sites there are.
func (s *Site) SetOthers(names []string) {
	clear(s.others)
	for _, n := range names {
		if n != s.self {
			s.others[n] = true
		}
	}
}

func (s *Site) send(to string, m Message) { s.out = append(s.out, Out{Send: &m, To: to}) }

// Out returns the outputs so far, in order, and forgets them. It must be called
// after every call of the site or its router.
func (s *Site) Out() []Out {
	for more := true; more; {
		more = false
		for _, o := range s.Router.Out() {
			more = true
			switch {
			case o.Quiet != nil:
				s.quiet(*o.Quiet)
			case o.Op != nil:
				s.complete(o.Op)
			default:
				s.out = append(s.out, Out{Route: &o})
			}
		}
	}
	out := s.out
	s.out = nil
	return out
}

// Phase returns how far a move of this site has come.
func (s *Site) Phase(number uint64) Phase {
	if x := s.moves[number]; x != nil {
		return x.phase
	}
	return over
}

// Moving returns how many moves are under way.
func (s *Site) Moving() int { return len(s.moves) }

// Begin begins a move in the name of one of this host's workers. What it
// returns where it cannot begin is an error; Out has the Result otherwise.
func (s *Site) Begin(m Move) error {
	if s.asked != nil {
		return errors.New("this host does not know yet what is displaced")
	}
	worker, err := s.Router.Mover()
	if err != nil {
		return err
	}
	if m.Handler != Adds && m.Handler != Assigns {
		return fmt.Errorf("%w: %s", ErrHandler, m.Handler)
	}
	slices.Sort(m.Keys)
	m.Keys = slices.Compact(m.Keys)
	for _, k := range m.Keys {
		if owner := s.Router.Table().Owner(k); owner != m.From {
			return fmt.Errorf("key %d belongs to server %d, not %d", k, owner, m.From)
		}
	}
	s.last++
	x := &moving{move: m, batch: route.Batch{Mover: s.self, Number: s.last}, ranges: m.Ranges(), worker: worker, loud: maps.Clone(s.others)}
	x.loud[s.self] = true
	if !s.Router.Hold(x.batch, x.ranges) {
		return errors.New("some of the keys are moving already")
	}
	s.moves[s.last] = x
	s.tellHold(x)
	return nil
}

func (s *Site) tellHold(x *moving) {
	s.sendToOthers(x, Message{Kind: Hold, Batch: x.batch, Keys: x.ranges, Owner: parted(x.move.To)})
}

// sendToOthers sends a message to all other sites.
func (s *Site) sendToOthers(x *moving, m Message) {
	for _, n := range slices.Sorted(maps.Keys(s.others)) {
		if m.Kind != Hold || x.loud[n] {
			s.send(n, m)
		}
	}
}

// Receive takes a message of another site.
func (s *Site) Receive(from string, m Message) {
	switch m.Kind {
	case Join:
		s.answerJoin(from)
	case Holding:
		if m.Batch.Mover != "" {
			s.answerHeld(from, m)
			return
		}
		s.holding(from, m.Held)
	case Hold:
		if m.Batch.Mover == from && s.Router.Hold(m.Batch, m.Keys) && m.Owner != 0 {
			s.parting[m.Batch] = parted(m.Owner)
		}
	case Quiet:
		s.heard(from, m)
	case Release:
		if m.Batch.Mover == from {
			s.endHold(m.Batch, m.Owner)
		}
	}
}

func (s *Site) inOrder() []*moving {
	return slices.SortedFunc(maps.Values(s.moves), func(a, b *moving) int { return cmp.Compare(a.batch.Number, b.batch.Number) })
}

// quiet is called when nothing for a held batch is under way on this host.
func (s *Site) quiet(b route.Batch) {
	m := Message{Kind: Quiet, Batch: b, Keys: s.Router.Held(b), Owner: s.parting[b]}
	if x := s.moves[b.Number]; b.Mover == s.self && x != nil {
		m.Owner = parted(x.move.To)
	}
	if m.Owner != 0 && s.Router.Waits(m.Keys) {
		m.Owner = waits
	}
	if b.Mover == s.self {
		s.heard(s.self, m)
		return
	}
	s.send(b.Mover, m)
}

// heard is called when a site says that it is quiet.
func (s *Site) heard(from string, m Message) {
	b := m.Batch
	if b.Mover != s.self {
		return
	}
	x := s.moves[b.Number]
	switch {
	case x == nil:
		s.settle(from, b, m.Keys)
		return
	case x.phase == quieting && m.Owner == waits:
		s.endMove(x, fmt.Errorf("%w: at %s", ErrWaits, from))
		return
	case m.Owner != parted(x.move.To):
		return // it does not know yet, or never will, that the keys go into parts
	}
	delete(x.loud, from)
	if x.phase == quieting && len(x.loud) == 0 {
		x.phase = reading
		x.op = &route.Op{Server: x.move.From, Keys: x.move.Keys}
		s.Router.Start(x.worker, x.op)
	}
}

// settle tells a site that still holds a batch of ours which is over, perhaps
// by the end of an earlier incarnation, that it is. The keys cannot have moved
// since: whoever moves them needs that site to hold them.
func (s *Site) settle(from string, b route.Batch, keys []plan.Keys) {
	if s.asked != nil || len(keys) == 0 {
		return // not known yet; it will say so again
	}
	s.send(from, Message{Kind: Release, Batch: b, Owner: s.Router.Table().Owner(keys[0].First)})
}

// complete is called when an op has its answer.
func (s *Site) complete(op *route.Op) {
	for _, x := range s.inOrder() {
		switch op {
		case x.op:
		case x.ahead:
			x.early = true
			return
		default:
			continue
		}
		ahead := x.ahead
		next, err := x.nextOp()
		switch {
		case err != nil:
			s.endMove(x, err)
		case next != nil && next == ahead: // under way
		case next != nil:
			s.start(x, next)
		default:
			x.phase = recording
			s.record(x)
		}
		return
	}
}

// start sends an op. Behind the first push goes the pull that checks it, so that a
// move takes a way less: servers take what comes over one connection in order, and
// where one does not, values are found wrong and corrected. Letters are repeated
// when they are lost, so they can arrive in any order; early ones wait.
func (s *Site) start(x *moving, op *route.Op) {
	s.Router.Start(x.worker, op)
	if x.phase == writing && x.tried == 0 && !s.Router.Resend() {
		x.ahead = x.ask()
		s.Router.Start(x.worker, x.ahead)
	}
}

func (s *Site) record(x *moving) {
	s.out = append(s.out, Out{Record: &Record{Batch: x.batch, Plan: x.move.Plan, From: x.move.From, To: x.move.To, Keys: x.ranges}})
}

// Recorded takes the store's answer: nil, or an error that means that nothing
// was recorded and never will be. As long as that is not known it must not be
// called; the keys wait.
func (s *Site) Recorded(b route.Batch, err error) {
	if x := s.moves[b.Number]; x != nil && x.batch == b && x.phase == recording {
		s.endMove(x, err)
	}
}

// endMove ends a move: done where err is nil, otherwise given up.
func (s *Site) endMove(x *moving, err error) {
	owner := x.move.To
	if err != nil {
		owner = route.Unchanged
		for _, op := range x.ops() {
			s.Router.Cancel(op)
		}
	}
	x.phase = over
	delete(s.moves, x.batch.Number)
	s.Router.Release(x.batch, owner)
	s.sendToOthers(x, Message{Kind: Release, Batch: x.batch, Owner: owner})
	s.out = append(s.out, Out{Result: &Result{Move: x.move, Batch: x.batch, Bytes: x.bytes, Err: err}})
}

// ErrPast is why a move was given up at once: at a site requests are not seen.
var ErrPast = errors.New("connections of a worker go past the proxy of its host, or have just come back")

// ErrWaits is why keys stayed whole: what a codec that leaves something out has held back
// of a worker's pushes could not go along into parts.
var ErrWaits = errors.New("something of a worker's pushes waits there, held back by a threshold or the like")

// ErrExpired is why a move was given up that took too long: a site did not get
// quiet, or a server did not answer.
var ErrExpired = errors.New("it took too long")

// Expire gives up a move, unless it may be recorded already or, with PS_RESEND,
// something was pushed already. It reports whether it did.
func (s *Site) Expire(b route.Batch) bool {
	x := s.moves[b.Number]
	if x == nil || x.batch != b || x.phase == recording || x.phase >= writing && s.Router.Resend() {
		// What was pushed may still arrive, and must not when somebody else
		// has moved the keys there: it is waited for, and repeated.
		return false
	}
	err := ErrExpired
	if x.phase == quieting {
		err = fmt.Errorf("%w: requests are under way at %v", ErrExpired, slices.Sorted(maps.Keys(x.loud)))
	}
	s.endMove(x, err)
	return true
}

// Drop gives up a move of a job that is over, for that reason, unless it may be
// recorded already. It reports whether it did.
func (s *Site) Drop(b route.Batch, why error) bool {
	x := s.moves[b.Number]
	if x == nil || x.batch != b || x.phase == recording {
		return false
	}
	s.endMove(x, why)
	return true
}

// Repeat says again what may have been lost: it is to be called every few
// hundred milliseconds, and when a site can be reached again.
func (s *Site) Repeat() {
	s.Router.Repeat()
	if s.asked != nil {
		s.ask()
		return
	}
	for _, x := range s.inOrder() {
		switch x.phase {
		case quieting:
			s.tellHold(x)
		case recording:
			s.record(x)
		}
	}
	for _, b := range s.Router.Holds() {
		s.Router.Hold(b, nil) // quiet is said again
		if b.Mover != s.self && !s.Router.Quiet(b) {
			s.askRelease(b)
		}
	}
}
