package migrate

import (
	"fmt"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/route"
)

// Join makes a site that knows nothing learn which keys are displaced and which are
// held. Until then no request passes.
func (s *Site) Join() {
	s.asked = maps.Clone(s.others)
	s.ask()
}

func (s *Site) ask() {
	for _, n := range slices.Sorted(maps.Keys(s.asked)) {
		s.send(n, Message{Kind: Join})
	}
	if len(s.asked) == 0 {
		s.out = append(s.out, Out{Fetch: true})
	}
}

// Joining returns the sites that have not yet sent their holds; nil when the site
// has joined.
func (s *Site) Joining() []string {
	if s.asked == nil {
		return nil
	}
	return slices.AppendSeq([]string{}, maps.Keys(s.asked))
}

// Fetched takes the store's answer to Fetch: where all keys are. The table is
// the site's from then on.
func (s *Site) Fetched(t *route.Table) {
	if s.asked == nil || len(s.asked) > 0 {
		return
	}
	s.asked = nil
	t.Set(s.released)
	s.Router.Open(t)
	s.released = nil
}

// holding takes what another site says that it holds.
func (s *Site) holding(from string, held []Held) {
	if !s.asked[from] {
		return
	}
	delete(s.asked, from)
	for _, h := range held {
		if h.Batch.Mover != s.self { // our own are decided by the store
			s.Router.Hold(h.Batch, h.Keys)
		}
	}
	if len(s.asked) == 0 {
		s.out = append(s.out, Out{Fetch: true})
	}
}

// waits, as the owner that a quiet site names, says that keys cannot go into parts.
const waits int32 = -4

// parted is the owner of keys that go into parts, 0 where they do not.
func parted(to int32) int32 {
	if plan.PartsOf(to) > 0 {
		return to
	}
	return 0
}

// endHold ends a hold of another site's.
func (s *Site) endHold(b route.Batch, owner int32) {
	delete(s.parting, b)
	if s.asked != nil && owner != route.Unchanged {
		for _, k := range s.Router.Held(b) {
			s.released = append(s.released, plan.Range{Keys: k, Owner: owner})
		}
	}
	s.Router.Release(b, owner)
}

// askRelease tells a mover that its batch is held here. It may be over, and what
// the mover said of that lost; while something is under way nothing else is said
// to it, and requests that wait for the batch would wait for ever.
func (s *Site) askRelease(b route.Batch) {
	m := Message{Kind: Holding, Batch: b, Keys: s.Router.Held(b), Held: s.held()}
	if !s.Router.Carried() {
		m.Owner = blind
	}
	s.send(b.Mover, m)
}

// blind, as the owner of such a question, says that it will not become quiet soon.
const blind int32 = -3

// answerHeld answers a site that asks so.
func (s *Site) answerHeld(from string, m Message) {
	x := s.moves[m.Batch.Number]
	switch {
	case m.Batch.Mover != s.self:
	case x == nil:
		s.settle(from, m.Batch, m.Keys)
	case x.phase == quieting && m.Owner == blind:
		s.endMove(x, fmt.Errorf("%w: at %s", ErrPast, from))
	}
}

// held is all that is held here.
func (s *Site) held() []Held {
	held := make([]Held, 0)
	for _, b := range s.Router.Holds() {
		held = append(held, Held{b, s.Router.Held(b)})
	}
	return held
}

// answerJoin sends the holds of this site to one that was killed. What it moved
// itself it must decide again.
func (s *Site) answerJoin(from string) {
	s.send(from, Message{Kind: Holding, Held: s.held()})
	for _, x := range s.inOrder() { // it was quiet, and knows nothing of it now
		if x.phase == quieting {
			x.loud[from] = true
		}
	}
}
