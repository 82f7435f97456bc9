package migrate

import (
	"fmt"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy/route"
)

// Join starts the join of a site that does not know which keys are displaced and which are held. It
// asks all other sites for their holds and then, by Fetch, the store for the table. Until
// [Site.Fetched] no request passes.
//
// The order matters: a move that is recorded after the store has answered ends with a Release,
// which the site sees because it holds the batch by then.
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

// Joining returns the sites that have not sent their holds yet, in no order; it is empty while only
// the store's answer is missing, and nil once the site has joined.
func (s *Site) Joining() []string {
	if s.asked == nil {
		return nil
	}
	return slices.AppendSeq([]string{}, maps.Keys(s.asked))
}

// Fetched takes the store's answer to Fetch: the owners of all displaced keys. The site owns t from
// then on. Late and repeated answers are ignored.
func (s *Site) Fetched(t *route.Table) {
	if s.asked == nil || len(s.asked) > 0 {
		return
	}
	s.asked = nil
	t.Set(s.released)
	s.Router.Open(t)
	s.released = nil
}

// holding takes the holds of another site, as the answer to Join. Batches of this site's earlier
// incarnation are not held again: the store has decided them, and the others learn it by
// [Site.settle].
func (s *Site) holding(from string, m *Message) {
	if !s.asked[from] {
		return
	}
	delete(s.asked, from)
	s.Router.MoveApp(m.App)
	if m.Last.Mover == from {
		s.endedOf(from).noteAll(m.Last)
	}
	for _, h := range m.Held {
		if h.Batch.Mover != s.self { // our own are decided by the store
			s.Router.Hold(h.Batch, h.Keys)
		}
	}
	if len(s.asked) == 0 {
		s.out = append(s.out, Out{Fetch: true})
	}
}

// waits, as the owner in a Quiet message, reports that the keys cannot go into parts.
const waits int32 = -4

// parted returns the owner of keys that go into parts, and 0 for an ordinary rank.
func parted(to int32) int32 {
	if plan.PartsOf(to) > 0 {
		return to
	}
	return 0
}

// endHold releases a batch of another mover.
func (s *Site) endHold(b route.Batch, owner int32) {
	delete(s.parting, b)
	s.endedOf(b.Mover).noteEnded(b)
	if s.asked != nil && owner != route.Unchanged {
		for _, k := range s.Router.Held(b) {
			s.released = append(s.released, plan.Range{Keys: k, Owner: owner})
		}
	}
	s.Router.Release(b, owner)
}

// askRelease tells a mover that its batch is still held here. The batch may be over and its Release
// lost. While requests are in flight this site has nothing else to say to the mover, so without
// this question the requests that wait for the batch could wait forever.
func (s *Site) askRelease(b route.Batch) {
	m := Message{Kind: Holding, Batch: b, Keys: s.Router.Held(b), Held: s.held(), App: s.Router.App()}
	if !s.Router.Carried() {
		m.Owner = blind
	}
	s.send(b.Mover, m)
}

// blind, as the owner in such a question, reports that this site does not see all requests of its
// workers and so cannot become quiet.
const blind int32 = -3

// answerHeld answers askRelease, at the mover.
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

// held returns all batches held here, with their keys.
func (s *Site) held() []Held {
	held := make([]Held, 0)
	for _, b := range s.Router.Holds() {
		held = append(held, Held{b, s.Router.Held(b)})
	}
	return held
}

// answerJoin sends the holds of this site to one that has restarted. A restarted site has lost its
// promise to be quiet, so it counts as loud again in moves that are still quieting. In later phases
// it cannot do harm: it passes nothing before it holds these keys.
func (s *Site) answerJoin(from string) {
	m := Message{Kind: Holding, Held: s.held(), App: s.Router.App()}
	if s.last > 0 {
		m.Last = route.Batch{Mover: s.self, Number: s.last}
	}
	s.send(from, m)
	for _, x := range s.inOrder() { // it was quiet, and knows nothing of it now
		if x.phase == quieting {
			x.loud[from] = true
		}
	}
}
