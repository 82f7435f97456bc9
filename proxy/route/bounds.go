package route

import "fmt"

const (
	// MaxSplits bounds the requests of a worker that are split and in flight. In a job with
	// PS_RESEND the router drops further ones, without an acknowledgement, and they come again. In
	// others nobody repeats a request: the caller has to let them wait unread while InFlight has
	// reached the bound. Queues that are flushed may still exceed it.
	MaxSplits = 1 << 16
	// maxOpen bounds the requests of a worker that are noted as in flight. Plain ones beyond it
	// pass all the same, and are not noted: their answers pass, too. There are so many only where a
	// server does not answer.
	maxOpen = 1 << 18
)

// unnoted is the identity, which no request has, of an entry that stands for requests in flight
// that were not noted. The router does not see when they have been answered. So the entry stays,
// and no hold that comes after it becomes quiet.
var unnoted = request{server: -1, timestamp: -1}

// beginUnnoted begins a plain request that is not noted.
func (r *Router) beginUnnoted(w *worker) {
	r.counts.Unnoted++
	if _, there := w.open[unnoted]; !there {
		w.open[unnoted] = entry{generation: r.generation}
		r.underWay[r.generation]++
	}
}

// Queued returns the number of requests of a worker that wait for a server, and the bytes of their
// data frames.
func (r *Router) Queued(workerID, server int32) (requests, bytes int) {
	w := r.workers[workerID]
	if w == nil {
		return 0, 0
	}
	for i := range w.queues[server] {
		bytes += total(w.queues[server][i].message.Data)
	}
	return len(w.queues[server]), bytes
}

// InFlight returns the number of a worker's requests that are split and in flight.
func (r *Router) InFlight(workerID int32) int {
	if w := r.workers[workerID]; w != nil {
		return w.inFlight
	}
	return 0
}

// UnderWay describes the requests in flight, for diagnostics; in no order within a worker.
func (r *Router) UnderWay() (all []string) {
	for _, id := range r.Workers() {
		for at, e := range r.workers[id].open {
			if at == unnoted {
				all = append(all, fmt.Sprintf("worker %d: requests beyond %d that are not noted", id, maxOpen))
				continue
			}
			all = append(all, fmt.Sprintf("worker %d to server %d, app %d customer %d timestamp %d: flags %d, split %v", id, at.server, at.app, at.customer, at.timestamp, e.flags, e.split != nil))
		}
	}
	return all
}
