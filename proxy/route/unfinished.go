package route

import (
	"fmt"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Unfinished is a request of a worker that is in flight or waits when its router ends in order. In
// jobs without PS_RESEND nothing is repeated, so the router of the next proxy needs it to deliver
// the answers. The proxy writes it as JSON; fields may be added, but not renamed.
type Unfinished struct {
	ID      ID             `json:"id"`
	Dialect pslite.Dialect `json:"dialect"`
	// Own is the timestamp of its parts, 0 where it passed as it was or waits.
	Own    int32   `json:"own,omitempty"`
	Owners []int32 `json:"owners,omitempty"` // ranks, ascending
	Joint  bool    `json:"joint,omitempty"`  // see the flag
	Parted bool    `json:"parted,omitempty"` // see the flag
	Order  []int32 `json:"order,omitempty"`  // see split
	// Answers are the frames of each owner's answer, empty where it has not come.
	Answers [][][]byte `json:"answers,omitempty"`
	// Unseen are the places among the owners whose answers, without values, came to a router that
	// was killed: nothing else is known of them. See [Kept.In].
	Unseen uint32 `json:"unseen,omitempty"`
	// Waits are the frames of a waiting request, empty for one in flight.
	Waits [][]byte `json:"waits,omitempty"`
}

// Unfinished returns what is unfinished of a worker's requests: those in flight in no order, then
// the waiting ones of each server in the order of arrival. The frames are shared with the router.
func (r *Router) Unfinished(workerID int32) (all []Unfinished) {
	w := r.workers[workerID]
	for id, e := range w.open {
		u := Unfinished{ID: id.public(), Dialect: w.speaks}
		if s := e.split; s != nil {
			u.Own, u.Owners, u.Joint, u.Parted, u.Answers = s.own, s.owners, s.joint, s.parted, make([][][]byte, len(s.owners))
			u.Unseen, u.Order = uint32(s.unseen.low), s.order
			for i := range s.answers {
				if s.in.has(i) && !s.unseen.has(i) {
					u.Answers[i] = frames(&s.answers[i], &s.answers[i].Meta, w.speaks, s.answers[i].Data)
				}
			}
		}
		all = append(all, u)
	}
	for _, server := range slices.Sorted(maps.Keys(w.queues)) {
		for i := range w.queues[server] {
			q := &w.queues[server][i]
			all = append(all, Unfinished{ID: q.id.public(), Dialect: q.dialect, Waits: frames(&q.message, &q.message.Meta, q.dialect, q.message.Data)})
		}
	}
	return all
}

// Knows reports whether a message with that timestamp belongs to a request of the worker, whole or
// in part, and not to an op.
func (r *Router) Knows(workerID, timestamp int32) bool {
	w := r.workers[workerID]
	return w != nil && (timestamp < FirstOwn || len(w.splits[timestamp]) > 0)
}

// Whole returns the timestamp of the worker's request that a part with that timestamp belongs to,
// and false where none in flight has such a part. Requests with joint parts share one timestamp.
func (r *Router) Whole(workerID, part int32) (timestamp int32, ok bool) {
	if w := r.workers[workerID]; w != nil && len(w.splits[part]) > 0 {
		return w.splits[part][0].id.timestamp, true // that of all
	}
	return 0, false
}

// Resume takes up what the router before this one has left of a worker's requests. It must be
// called after [Router.AddWorker] and before any message of the worker is shown.
func (r *Router) Resume(workerID int32, all []Unfinished) error {
	w := r.workers[workerID]
	if w == nil {
		return fmt.Errorf("route: worker %d is not known", workerID)
	}
	for i := range all {
		if err := r.resume(w, &all[i]); err != nil {
			return fmt.Errorf("route: request %d of worker %d to server %d: %w", all[i].ID.Timestamp, workerID, all[i].ID.Server, err)
		}
	}
	r.flushWorker(w) // what only waited for other slices waits for none here
	return nil
}

// resume restores one request of a worker that the proxy before this one left
// unfinished. It counts as begun longAgo, so that every hold waits for it.
func (r *Router) resume(w *worker, u *Unfinished) error {
	id := Kept{ID: u.ID}.id()
	w.speaks = u.Dialect
	if len(u.Waits) > 0 {
		if w.waits(id) { // the ledger has it, too
			return nil
		}
		m, err := message(u.Waits, u.Dialect)
		if err == nil {
			w.queues[id.server] = append(w.queues[id.server], waiting{id: id, message: m, dialect: u.Dialect})
		}
		return err
	}
	e := entry{generation: r.generation - longAgo, kept: true}
	if u.Own != 0 {
		if len(u.Owners) == 0 || len(u.Owners) > MaxOwners || len(u.Answers) != len(u.Owners) {
			return fmt.Errorf("%d answers of %d owners", len(u.Answers), len(u.Owners))
		}
		e.split = newSplit(id, u.Own, u.Owners)
		if u.Joint {
			e.split.joint, e.flags = true, Joint
		}
		if u.Parted {
			e.split.parted, e.flags = true, e.flags|Parted
		}
		if e.split.order = u.Order; len(u.Order) > 0 {
			e.split.mixed, e.flags = true, e.flags|Mixed
		}
		e.split.unseen = set{low: uint64(u.Unseen) & (1<<len(u.Owners) - 1)}
		e.split.in = e.split.unseen
		for i, answer := range u.Answers {
			if len(answer) == 0 {
				continue
			}
			var err error
			if e.split.answers[i], err = message(answer, u.Dialect); err != nil {
				return err
			}
			e.split.in.addNumber(i)
		}
	}
	if before, there := w.open[id]; !there {
		r.underWay[e.generation]++
	} else { // the ledger has it, too, and it is counted in the generation that it had
		e.generation = before.generation
		w.removeSplit(before.split)
	}
	w.addSplit(e.split)
	w.open[id] = e
	return nil
}

// message is the reverse of frames.
func message(frames [][]byte, d pslite.Dialect) (m pslite.Message, err error) {
	if _, ok := pslite.ParseIdentity(frames[0]); ok && len(frames) > 1 {
		m.Identity, frames = frames[0], frames[1:]
	}
	m.Data = frames[1:]
	return m, m.Meta.Decode(frames[0], d)
}
