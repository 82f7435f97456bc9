package route

import (
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// BytePS's servers answer on the connection that asked, where the router has no place between server
// and worker, so that a request cannot be split: nobody could merge the answers. It has one key, and
// its worker counts answers by their timestamp, whoever sends them. So a request for a displaced key
// is rerouted: it goes whole and unchanged to the owner, over the same worker's connection there,
// and the answer passes on that connection like any other.
//
// The router keeps nothing of such a request but, of the last ones, which server was asked:
//   - with PS_RESEND the owner acknowledges a message to itself, and the worker waits for an
//     acknowledgement by the server that it asked;
//   - two slices of one request are told apart by their connections alone, so they must not come to
//     be on one.

// lastWhole is how many timestamps of a worker are remembered, a power of two. A worker does not
// have as many requests in flight at a time: each is for another key, or waits for the one before.
const lastWhole = 4096

// whole is a request of a worker of BytePS's: the server that it named, and the one that it went to.
type whole struct {
	known                    bool
	app, customer, timestamp int32
	server, owner            int32
}

// ErrWhole is wrapped by errors of [Router.Recipient].
var ErrWhole = errors.New("BytePS's servers answer on the asker's connection, where answers cannot be merged")

// Recipient returns the rank of the server to which a request goes that cannot be split, as
// BytePS's: the owner of its key. It changes nothing, and may be called again for the same request
// until [Router.PassWhole] or [Router.Reroute] is. The error says why the request cannot be served.
func (r *Router) Recipient(workerID, server int32, m *pslite.Meta, keys pslite.Keys) (owner int32, err error) {
	if r.table.Empty() {
		return server, nil
	}
	if owner, err = r.ownerWhole(server, m.AppID, keys); err != nil {
		return 0, err
	}
	if w := r.workers[workerID]; w != nil {
		if a := w.wholeAt(m.Timestamp); a != nil && a.app == m.AppID && a.customer == m.CustomerID && a.server != server && a.owner == owner {
			return 0, fmt.Errorf("%w: two slices of request %d would go to server %d", ErrWhole, m.Timestamp, owner)
		}
	}
	return owner, nil
}

// ownerWhole returns the server that has all keys of a request of that server.
func (r *Router) ownerWhole(server, app int32, keys pslite.Keys) (owner int32, err error) {
	owner = server
	if !r.displaces(app, keys) {
		return owner, nil
	}
	for i := range keys.Len() {
		of, displaced := r.tableOf(app).displaced(keys.At(i))
		switch {
		case !displaced || of == server:
			continue
		case keys.Len() > 1:
			return 0, fmt.Errorf("%w: a request of %d keys has a displaced one, %d", ErrWhole, keys.Len(), keys.At(i))
		case plan.HomeOf(keys.At(i), r.table.servers) != server:
			return 0, fmt.Errorf("%w: server %d was asked for the displaced key %d, which is not at home there, as in jobs with several instances of a node", ErrWhole, server, keys.At(i))
		case plan.PartsOf(of) > 0 || int(of) >= r.table.servers:
			return 0, fmt.Errorf("%w: key %d belongs to no single server", ErrWhole, keys.At(i))
		}
		owner = of
	}
	return owner, nil
}

// displaced returns the owner of a displaced key, and false for a key that no entry names.
func (t *Table) displaced(key uint64) (owner int32, ok bool) {
	if owner, ok = t.singles.get(key); ok {
		return owner, true
	}
	if r := t.rangeOf(key); r != nil {
		return r.Owner, true
	}
	return 0, false
}

// PassWhole notes a request that goes on unchanged to the server that it names.
func (r *Router) PassWhole(workerID, server int32, m *pslite.Meta) {
	r.counts.Plain++
	if w := r.workers[workerID]; w != nil && !r.table.Empty() {
		w.noteAsked(m, server, server)
	}
}

// Reroute sends a whole request to the owner of its key. The memory of the message must not change
// until the output is carried out.
func (r *Router) Reroute(workerID, server, owner int32, m *pslite.Message, d pslite.Dialect) {
	w := r.workers[workerID]
	w.speaks = d
	w.noteAsked(&m.Meta, server, owner)
	r.counts.Rerouted++
	r.send(w, owner, frames(m, &m.Meta, d, m.Data))
}

// ForgetAsked forgets which servers a worker has asked: it may have begun its timestamps anew.
func (r *Router) ForgetAsked(workerID int32) {
	if w := r.workers[workerID]; w != nil {
		w.wholes = nil
	}
}

// noteAsked notes where a request goes.
func (w *worker) noteAsked(m *pslite.Meta, server, owner int32) {
	if w.wholes == nil {
		w.wholes = make([]whole, lastWhole)
	}
	w.wholes[uint32(m.Timestamp)%lastWhole] = whole{true, m.AppID, m.CustomerID, m.Timestamp, server, owner}
}

// wholeAt returns what is remembered of the request of that timestamp, nil where that is nothing.
func (w *worker) wholeAt(timestamp int32) *whole {
	if w.wholes == nil {
		return nil
	}
	if a := &w.wholes[uint32(timestamp)%lastWhole]; a.known && a.timestamp == timestamp {
		return a
	}
	return nil
}

// ackedRerouted handles an ACK of the server that a request was rerouted to: the worker gets one of
// the server that it asked. It reports whether that is so.
func (r *Router) ackedRerouted(w *worker, server, app, timestamp int32) bool {
	a := w.wholeAt(timestamp)
	if a == nil || a.owner != server || a.server == server || int32(int16(a.app)) != app {
		return false
	}
	r.acknowledge(w, request{server: a.server, app: a.app, timestamp: timestamp})
	return true
}
