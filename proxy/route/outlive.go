package route

// kept returns a waiting request as the ledger stores it. The frames are shared.
func (q *waiting) kept() Message {
	return Message{ID: q.id.public(), Place: Waits, Dialect: q.dialect, Frames: frames(&q.message, &q.message.Meta, q.dialect, q.message.Data)}
}

// takeKept takes up the messages that the router before this one had when it was killed. To the
// worker it looks as if they had been on the network.
func (r *Router) takeKept(w *worker) {
	for _, k := range w.ledger.Messages() {
		id := Kept{ID: k.ID}.id()
		m, err := message(k.Frames, k.Dialect)
		e, open := w.open[id]
		switch {
		case err != nil:
		case k.Place == Waits:
			if open { // the router was killed before it could send anything of it
				r.finish(w, id, e)
			}
			w.speaks = k.Dialect
			w.queues[id.server] = append(w.queues[id.server], waiting{id: id, message: m, dialect: k.Dialect})
			continue
		case open && e.split != nil && k.Place >= 0 && int(k.Place) < len(e.split.owners):
			w.speaks = k.Dialect
			e.split.answers[k.Place] = m
			e.split.in.addNumber(int(k.Place))
			continue
		}
		w.ledger.Drop(k.ID, k.Place) // nobody waits for it
	}
	r.flush()
}
