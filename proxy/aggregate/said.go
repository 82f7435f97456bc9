package aggregate

// say notes why the last push is not summed; empty: it can be.
func (q *Queue) say(why string) {
	if before := q.said.Load(); before == nil || *before != why {
		q.said.Store(&why)
	}
}

// Said returns why the last push of at least Least could not be summed, empty where it could;
// ok is false where there has been none. It is safe for concurrent use.
func (q *Queue) Said() (why string, ok bool) {
	if said := q.said.Load(); said != nil {
		return *said, true
	}
	return "", false
}
