package route

import "slices"

// Without PS_RESEND nobody repeats a request. One of a worker that has ended or was restarted may
// never be answered, because its connections ended too, and a hold would wait for it forever. So
// such requests are abandoned as soon as that is known: they are closed without an answer, and
// counted by reason. The answer to a part that still comes is a stray.
//
// With PS_RESEND nothing is abandoned unless the worker was restarted on another host. Servers repeat
// an answer until somebody acknowledges it, and a worker that was restarted cannot be told from one
// that retransmits.

// NextGeneration begins a generation of requests, and returns the one before. All requests that
// began so far are of that generation or of an earlier one.
func (r *Router) NextGeneration() (last uint32) {
	last = r.generation
	r.generation++
	return last
}

// AbandonConnection closes those requests of a worker that wait for a server and began in
// generation last or before. The caller knows that the worker itself has ended the connection on
// which it, or the router, sent them to that server. It returns how many there were.
func (r *Router) AbandonConnection(workerID, server int32, last uint32) (closed int) {
	w := r.workers[workerID]
	// Before its first answer it is not known whether the worker retransmits.
	if w == nil || r.resend || !w.answered {
		return 0
	}
	for id, e := range w.open {
		if int32(e.generation-last) <= 0 && e.waitsFor(id, server) {
			r.closeRequest(w, id, e)
			closed++
		}
	}
	r.counts.Ended += uint64(closed)
	r.checkQuiet()
	return closed
}

// AbandonWorker closes all requests of a worker, those in flight and those that wait. The caller
// knows that another process has taken the worker's place. It returns how many there were.
func (r *Router) AbandonWorker(workerID int32) (closed int) {
	w := r.workers[workerID]
	if w == nil || r.resend {
		return 0
	}
	return r.abandonWorker(w)
}

// RemoveWorker closes all requests of a worker whose place a process on another host has taken: what
// comes for it no longer passes here, also with PS_RESEND. It returns how many there were.
func (r *Router) RemoveWorker(workerID int32) (closed int) {
	w := r.workers[workerID]
	if w == nil {
		return 0
	}
	w.gone = true
	return r.abandonWorker(w)
}

func (r *Router) abandonWorker(w *worker) (closed int) {
	for id, e := range w.open {
		r.closeRequest(w, id, e)
		closed++
	}
	for server, q := range w.queues {
		for i := range q {
			w.ledger.Drop(q[i].id.public(), Waits)
		}
		closed += len(q)
		delete(w.queues, server)
	}
	// The timestamps of the new process say nothing about slices of the old one.
	clear(w.gathers)
	clear(w.slicings)
	r.counts.Restarted += uint64(closed)
	r.checkQuiet()
	return closed
}

// waitsFor reports whether a server has yet to answer a request, or a part of it.
func (e *entry) waitsFor(id request, server int32) bool {
	s := e.split
	if s == nil {
		return id.server == server
	}
	for i := range s.owners {
		if _, rank := s.at(i); rank == server && !s.in.has(i) {
			return true
		}
	}
	return false
}

// supersede ends a request in flight, of a job that repeats nothing, when the worker makes
// a request of the same identity: the worker was restarted and counts its timestamps from 0
// again. Nobody waits for the old request's answer, and without this its parts would be taken
// for those of the new one. Before the worker's first answer it is not known whether the job
// repeats anything; then only what a previous router has left in the ledger is ended.
func (r *Router) supersede(w *worker, id request) {
	if r.resend {
		return
	}
	if e, ok := w.open[id]; ok && (e.kept || w.answered) {
		r.counts.Restarted++
		r.finish(w, id, e)
	}
	if i := w.queued(id); i >= 0 {
		w.queues[id.server] = slices.Delete(w.queues[id.server], i, i+1)
		w.ledger.Drop(id.public(), Waits)
		if w.answered {
			r.counts.Restarted++
		}
	}
}
