package aggregate

// say notes why a push is not summed; empty: it is where others are there for it.
func (q *Queue) say(why string) {
	if before := q.said.Load(); before == nil || *before != why {
		q.said.Store(&why)
	}
}

// Said returns why the last push of 4 KiB or more was not to be summed, empty where it was;
// ok is false where there has been none. It may be called from any goroutine.
func (q *Queue) Said() (why string, ok bool) {
	if said := q.said.Load(); said != nil {
		return *said, true
	}
	return "", false
}
