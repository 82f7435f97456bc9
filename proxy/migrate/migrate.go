// Package migrate moves keys from server to server while a job runs. It is a state machine, like
// package route, without sockets, clocks or goroutines.
//
// A [Site] is one host's part in the protocol; it wraps the host's [route.Router]. The site that
// begins a [Move] is its mover and coordinates it:
//
//  1. quieting: the mover sends Hold to all other sites, and waits for Quiet from every site,
//     its own included. A site is quiet when none of its requests for the keys is in flight.
//  2. reading: the mover pulls the values from the old owner.
//  3. writing, checking: it pushes them to the new owner, pulls them back, and pushes the
//     difference until both are equal to the last bit.
//  4. recording: the planner's store writes the new owner to disk. This is the commit point.
//  5. Release goes to all sites, and held requests go to the new owner.
//
// Up to the record the move can be given up at any moment, and the keys stay with the old owner.
// From the record on they belong to the new owner, and the move is only carried to its end.
//
// A site that was killed starts as a joining one: no request passes until all other sites have sent
// it their holds, and the store the owners of keys. The store decides the fate of the moves of the
// killed site: recorded ones are finished, others are given up, and the other sites, which still
// hold, are released accordingly.
//
// Messages may be lost, duplicated and reordered. Every step is idempotent and [Site.Repeat] sends
// again what has not been answered, so the protocol needs no acknowledgements of its own.
//
// Inputs are messages of other sites ([Site.Receive]), answers of the store ([Site.Recorded],
// [Site.Fetched]) and moves to begin ([Site.Begin]); outputs are what [Site.Out] returns. Package
// proxy/jobs calls it, one call at a time.
package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// Site is one host's part in moving a job's keys. It has no lock, clock or goroutine: the caller
// serializes all calls, and carries out what Out returns.
//
// Invariants, between two calls:
//   - moves has the moves of this site that are not over, by batch number, and Router holds the
//     keys of each. No key is in two of them.
//   - last is the highest batch number used so far: numbers only grow, so that a late message of
//     an earlier batch never matches a later one.
//   - while asked is not nil, no move begins and Router lets no request pass; released is empty
//     otherwise.
//   - the store alone decides a move: before Recorded its keys belong to the old owner, whatever
//     the new one holds of them.
type Site struct {
	Router *route.Router
	self   string
	others map[string]bool // the sites of other hosts
	moves  map[uint64]*moving
	last   uint64          // number of the last batch
	asked  map[string]bool // those that have not answered Join yet; nil: joined
	// released is what was released while the site was joining. It overrules the table that the
	// store sends: the store may have answered before it recorded these moves.
	released []plan.Range
	// parting has, for batches of other movers that are held here and whose keys go into parts, the
	// owner that the keys will have. Quiet repeats it, so that the mover knows that this site took
	// the batch as one of parts.
	parting map[route.Batch]int32
	late    []late            // at most maxLate
	ended   map[string]*ended // by mover
	out     []Out
}

// New returns a site of that name that has joined: either nothing has been displaced in the job
// yet, or the router's table is complete. Its first batch gets number+1. The caller must pass a
// number at least as high as any that an earlier incarnation of the site used; otherwise other
// sites take a new batch for one that is over.
func New(self string, r *route.Router, number uint64) *Site {
	return &Site{Router: r, self: self, others: map[string]bool{}, moves: map[uint64]*moving{}, last: number, parting: map[route.Batch]int32{}, ended: map[string]*ended{}}
}

// Name returns the site's own name.
func (s *Site) Name() string { return s.self }

// Last returns the number of the batch that was begun last. The caller persists it for [New].
func (s *Site) Last() uint64 { return s.last }

// SetOthers replaces the names of the other sites of the job; self may be among them. It does not
// touch moves that have begun, nor a join: the sites that these wait for stay the same.
func (s *Site) SetOthers(names []string) {
	clear(s.others)
	for _, n := range names {
		if n != s.self {
			s.others[n] = true
		}
	}
}

func (s *Site) send(to string, m Message) { s.out = append(s.out, Out{Send: &m, To: to}) }

// Out returns the outputs so far, in order, and forgets them. It must be called after every call of
// the site or its router.
//
// Outputs of the router that concern moves (a batch is quiet, an op is complete) are inputs of the
// site and may make further router outputs, hence the loop; only messages for servers and workers
// are returned.
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

// Phase returns how far a move of this site has come. Unknown numbers are taken for moves that are
// over.
func (s *Site) Phase(number uint64) Phase {
	if x := s.moves[number]; x != nil {
		return x.phase
	}
	return over
}

// Moving returns the number of moves in progress.
func (s *Site) Moving() int { return len(s.moves) }

// Begin starts a move in the name of one of this host's workers. It sorts and compacts m.Keys in
// place. An error means that nothing has begun; otherwise the outcome is a [Result] of Out.
//
// The move acts as a worker because servers know no other clients: its pulls and pushes are made
// like the worker's own ([route.Router.Mover]).
func (s *Site) Begin(m Move) error {
	if s.asked != nil {
		return errors.New("this host does not yet know which keys are displaced")
	}
	worker, err := s.Router.Mover()
	if err != nil && !s.mayGoHome(err, &m) {
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
	if s.mayArrive(m.Keys) {
		return ErrLate
	}
	s.last++
	x := &moving{move: m, batch: route.Batch{Mover: s.self, Number: s.last}, ranges: m.Ranges(), worker: worker, loud: maps.Clone(s.others)}
	// The mover's own host has to become quiet like every other one.
	x.loud[s.self] = true
	if !s.Router.Hold(x.batch, x.ranges) {
		return errors.New("some of the keys are moving already")
	}
	s.moves[s.last] = x
	s.Router.MoveApp(s.Router.AppOf())
	s.tellHold(x)
	return nil
}

// mayGoHome reports whether a move can be made although the job's keys must not move, for err: what has moved, or was
// placed, can go back. It is known whose keys these are, and what the program asks of other servers than the home is no
// concern of the keys that are asked of the home.
func (s *Site) mayGoHome(err error, m *Move) bool {
	servers := s.Router.Table().Servers()
	return (errors.Is(err, route.ErrSlicer) || errors.Is(err, route.ErrApps)) && (s.Router.App() != pslite.Empty || s.Router.OneApp()) &&
		!slices.ContainsFunc(m.Keys, func(key uint64) bool { return plan.HomeOf(key, servers) != m.To })
}

// tellHold asks the sites that are not quiet yet to hold the keys. A site that holds them already
// answers with Quiet again.
func (s *Site) tellHold(x *moving) {
	s.sendToOthers(x, Message{Kind: Hold, Batch: x.batch, Keys: x.ranges, Owner: parted(x.move.To), App: s.Router.App()})
}

// sendToOthers sends a message about a move to all other sites, a Hold only to those that are still
// loud.
func (s *Site) sendToOthers(x *moving, m Message) {
	for _, n := range slices.Sorted(maps.Keys(s.others)) {
		if m.Kind != Hold || x.loud[n] {
			s.send(n, m)
		}
	}
}

// Receive handles a message of another site. Messages about a batch are accepted only from its
// mover, and answers only by it; anything else is a leftover of a site that has restarted, and is
// ignored.
func (s *Site) Receive(from string, m Message) {
	switch m.Kind {
	case Join:
		s.answerJoin(from)
	case Holding:
		if m.Batch.Mover != "" {
			s.answerHeld(from, m)
			return
		}
		s.holding(from, &m)
	case Hold:
		if m.Batch.Mover != from || s.endedOf(from).has(m.Batch) && s.Router.Held(m.Batch) == nil {
			return
		}
		s.Router.MoveApp(m.App)
		if s.Router.Hold(m.Batch, m.Keys) && m.Owner != 0 {
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

// inOrder returns the moves by batch number, so that outputs do not depend on map order.
func (s *Site) inOrder() []*moving {
	return slices.SortedFunc(maps.Values(s.moves), func(a, b *moving) int { return cmp.Compare(a.batch.Number, b.batch.Number) })
}

// quiet is called when no request for a held batch is in flight on this host. It reports that to
// the mover, which may be this site.
//
// Keys that go into parts cannot take along what a codec has held back of earlier pushes. Where
// there is some, the site answers with owner waits, and the mover gives the move up.
func (s *Site) quiet(b route.Batch) {
	m := Message{Kind: Quiet, Batch: b, Keys: s.Router.Held(b), Owner: s.parting[b]}
	m.Uses, m.App = s.Router.Uses(m.Keys), s.Router.App()
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

// heard handles a site's report that it is quiet, at the mover. Once the last one has reported, no
// request for the keys is in flight anywhere and none can start, so the value at the old owner no
// longer changes: reading begins.
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
	case x.phase == quieting && s.Router.App() != pslite.Empty && m.App != s.Router.App(): // two hosts began to move keys, each of another app
		s.endMove(x, route.ErrApps)
		return
	}
	if x.loud[from] {
		delete(x.loud, from)
		x.uses = route.MergeUses(x.uses, m.Uses)
	}
	if x.phase == quieting && len(x.loud) == 0 {
		s.beginReading(x)
	}
}

// beginReading begins to pull the keys of a move from their old owner, where they can move as they are used on all hosts.
func (s *Site) beginReading(x *moving) {
	if err := route.Fits(x.uses); err != nil && !s.mayGoHome(err, &x.move) {
		s.endMove(x, err)
		return
	}
	x.phase = reading
	x.op = &route.Op{Server: x.move.From, Keys: x.move.Keys, Uses: x.uses}
	s.Router.Start(x.worker, x.op)
}

// settle releases a batch of this mover that another site still holds although it is over, perhaps
// since an earlier incarnation. As a rule the keys cannot have moved since, because any later mover
// would need that site to hold them. But a Hold may arrive behind its Release, and behind a later
// move's; that move may even be over there and not yet here. So while another mover has this site
// hold one of the keys the owner is not known. Otherwise the table has it. Where the keys have several
// owners by now, later moves of some of them are over, and the site has seen them end before it could
// hold all of these again: it knows the owners.
func (s *Site) settle(from string, b route.Batch, keys []plan.Keys) {
	if s.asked != nil || len(keys) == 0 || s.Router.HoldsForOthers(s.self, keys) {
		return // not known yet; it will say so again
	}
	s.send(from, Message{Kind: Release, Batch: b, Owner: s.ownerOf(keys)})
}

// maxSettled is far above the number of keys of a batch.
const maxSettled = 1 << 20

// ownerOf returns the owner of all keys, Unchanged where they have several.
func (s *Site) ownerOf(keys []plan.Keys) int32 {
	table, left := s.Router.Table(), uint64(maxSettled)
	owner := table.Owner(keys[0].First)
	for _, r := range keys {
		if r.Last-r.First >= left { // no batch of ours
			return route.Unchanged
		}
		left -= r.Last - r.First
		for k := r.First; ; k++ {
			if table.Owner(k) != owner {
				return route.Unchanged
			}
			if k == r.Last {
				break
			}
		}
	}
	return owner
}

// complete is called when an op has its answer, and starts the next one of its move.
func (s *Site) complete(op *route.Op) {
	s.late = slices.DeleteFunc(s.late, func(l late) bool { return l.op == op })
	for _, x := range s.inOrder() {
		if op != x.op {
			continue
		}
		next, err := x.nextOp()
		switch {
		case err != nil:
			s.endMove(x, err)
		case next != nil:
			s.Router.Start(x.worker, next)
		default:
			x.phase = recording
			s.record(x)
		}
		return
	}
}

// record asks the planner's store to write the new owner. Repeated records of one batch are
// idempotent at the store.
func (s *Site) record(x *moving) {
	s.out = append(s.out, Out{Record: &Record{Batch: x.batch, Plan: x.move.Plan, From: x.move.From, To: x.move.To, Keys: x.ranges}})
}

// Recorded takes the store's answer: nil, or an error that means that the move was not recorded and
// never will be. While the outcome is unknown it must not be called; the keys stay held, since
// releasing them to either owner could be wrong.
func (s *Site) Recorded(b route.Batch, err error) {
	if x := s.moves[b.Number]; x != nil && x.batch == b && x.phase == recording {
		s.endMove(x, err)
	}
}

// endMove ends a move: done where err is nil, otherwise given up, which leaves the keys with the
// old owner. Release is sent once and not acknowledged: a site that misses it asks for it
// ([Site.askRelease]).
func (s *Site) endMove(x *moving, err error) {
	owner := x.move.To
	if err != nil {
		owner = route.Unchanged
		if x.op != nil {
			s.giveUp(x.worker, x.op)
		}
	}
	x.phase = over
	delete(s.moves, x.batch.Number)
	s.Router.Release(x.batch, owner)
	s.sendToOthers(x, Message{Kind: Release, Batch: x.batch, Owner: owner})
	s.out = append(s.out, Out{Result: &Result{Move: x.move, Batch: x.batch, Bytes: x.bytes, Err: err}})
}

// ErrPast is the reason of a move that was given up at once because a site does not see all of its
// workers' requests.
var ErrPast = errors.New("connections of a worker bypass its host's proxy, or have just returned to it")

// ErrWaits is the reason why keys were not divided into parts: what a lossy codec has held back of
// a worker's pushes could not go along.
var ErrWaits = errors.New("residuals of a worker's pushes are held back there")

// ErrExpired is the reason of a move that took too long: a site did not become quiet, or a server
// did not answer.
var ErrExpired = errors.New("it took too long")

// Expire gives up a move that has taken too long, and reports whether it did. The caller keeps the
// time. A move that may have been recorded is not given up, nor, with PS_RESEND, one that has
// pushed something. Without, what was pushed is late.
func (s *Site) Expire(b route.Batch) bool {
	x := s.moves[b.Number]
	if x == nil || x.batch != b || x.phase == recording || x.phase >= writing && (s.Router.Resend() || len(s.late) >= maxLate) {
		// What was pushed may still arrive, and must not when somebody else
		// has moved the keys there: it is waited for, and repeated.
		return false
	}
	err := ErrExpired
	if x.phase == quieting {
		err = fmt.Errorf("%w: requests are in flight at %v", ErrExpired, slices.Sorted(maps.Keys(x.loud)))
	}
	s.endMove(x, err)
	return true
}

// Drop gives up a move because its job is over, with why as the result's error, and reports whether
// it did. Unlike [Site.Expire] it need not wait for pushes: nobody uses the values any more.
func (s *Site) Drop(b route.Batch, why error) bool {
	x := s.moves[b.Number]
	if x == nil || x.batch != b || x.phase == recording {
		return false
	}
	s.endMove(x, why)
	return true
}

// Repeat sends again what may have been lost. The caller calls it every few hundred milliseconds,
// and when a site becomes reachable again.
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
		s.Router.Hold(b, nil) // quiet is reported again
		if b.Mover != s.self && !s.Router.Quiet(b) {
			s.askRelease(b)
		}
	}
}
